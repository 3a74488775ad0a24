"""``python -m posterity``, which torchrun needs."""

from posterity.cli.main import run

run()
