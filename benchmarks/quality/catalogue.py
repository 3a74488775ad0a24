"""Every table by name."""

from benchmarks.quality import bayesian_cnn, cyclical_cifar10, hwa_cifar10, ood, poster_cifar10, swag_cifar10, text
from benchmarks.quality.tables import Table

MODULES = (poster_cifar10, swag_cifar10, cyclical_cifar10, hwa_cifar10, bayesian_cnn, ood, text)
TABLES: dict[str, Table] = {table.name: table for module in MODULES for table in module.TABLES}
