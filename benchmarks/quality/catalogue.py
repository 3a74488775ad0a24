"""Every table by name."""

from benchmarks.quality import poster_cifar10
from benchmarks.quality.tables import Table

MODULES = (poster_cifar10,)
TABLES: dict[str, Table] = {table.name: table for module in MODULES for table in module.TABLES}
