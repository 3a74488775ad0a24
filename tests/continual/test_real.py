"""Two orders of MNIST's pixels: what is carried on is remembered. Slow, and skipped without the data."""

from __future__ import annotations

import pytest

import posterity as pst
from posterity import continual, data
from posterity.continual.recipes import recipe

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not any(d.name == "mnist" and d.here for d in data.describe()), reason="no MNIST here"),
]


def test_vogn_remembers_what_fine_tuning_forgets():
    stream = continual.benchmark("permuted-mnist", tasks=3, validate=True)
    found = {}
    for name in ("vogn", "fine-tuning"):
        made = recipe(name)
        training = pst.Training(batch_size=512, lr=made.lr, progress=False)
        # Six epochs a task are what the recipe's learning rate was chosen for.
        found[name] = continual.learn(stream.module, made.strategy, stream.tasks, epochs=6, training=training, draws=8)
    assert found["vogn"].accuracy > 0.95
    assert found["vogn"].accuracy > found["fine-tuning"].accuracy + 0.05
