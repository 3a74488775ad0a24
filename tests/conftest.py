"""What holds for every test."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def same_start() -> None:
    """Layers and inputs made without a seed are the same in every run, whatever ran before."""
    torch.manual_seed(0)
