"""Figures of a stream with known answers, and how a task is judged."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import posterity as pst
from posterity import continual
from posterity.continual import FineTuning
from posterity.continual.judge import judged
from posterity.continual.result import average, backward_transfer, forgetting, forward_transfer
from posterity.posteriors import Empirical
from tests.continual.streams import FAST, network, tasks

R = [[0.9, 0.2, 0.1], [0.7, 0.8, 0.3], [0.6, 0.9, 0.7]]


def test_figures_of_a_matrix():
    assert average(R) == pytest.approx([0.9, 0.75, 2.2 / 3])
    assert forgetting(R) == pytest.approx(((0.9 - 0.6) + (0.8 - 0.9)) / 2)
    guessed = [[0.9, 0.95, 0.1], *R[1:]]  # the second task, before it was learned: no accuracy to fall from
    assert forgetting(guessed) == forgetting(R)
    assert backward_transfer(R) == pytest.approx(((0.6 - 0.9) + (0.9 - 0.8)) / 2)
    assert forward_transfer(R, [0.1, 0.1, 0.1]) == pytest.approx(((0.2 - 0.1) + (0.3 - 0.1)) / 2)
    assert forward_transfer([[0.9], [0.7, 0.8]], [0.1, 0.1]) is None
    assert forgetting([[0.9]]) == backward_transfer([[0.9]]) == 0


def test_figures_leave_out_what_has_no_test():
    nothing = [[None if k == 1 else value for k, value in enumerate(row)] for row in R]
    assert average(nothing) == pytest.approx([0.9, 0.7, (0.6 + 0.7) / 2])
    assert forgetting(nothing) == pytest.approx(0.9 - 0.6) and backward_transfer(nothing) == pytest.approx(0.6 - 0.9)
    assert forward_transfer(nothing, [0.1, None, 0.1]) == pytest.approx(0.3 - 0.1)


@pytest.mark.parametrize("known", [list, iter])
def test_a_task_without_a_test_is_left_out_of_the_average(known):
    first, second = tasks()
    stream = known([replace(first, test=None), second])
    learned = continual.learn(network(), FineTuning(), stream, epochs=5, training=FAST)
    alone = judged(learned.predictive, second.test, 32, pst.likelihoods.MultiHead(heads=((0, 1), (2, 3)), head=1))
    assert learned.accuracy == alone["accuracy"] > 0.7
    assert learned.matrix()[-1] == [None, alone["accuracy"]]


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_numbers_are_judged_in_either_shape(shape):
    x = torch.linspace(-1, 1, 50)[:, None]
    y = 2 * x[:, 0] + torch.tensor([0.3, -0.3]).repeat(25)  # off by 0.3 wherever the line is
    line = {"weight": torch.tensor([[2.0]]), "bias": torch.zeros(1)}
    q = Empirical(nn.Linear(1, 1), pst.likelihoods.Gaussian(0.5), [line])
    found = judged(q, (x, y.view(shape)), 1)
    assert found["rmse"] == pytest.approx(0.3, rel=1e-5)
    assert found["nll"] == pytest.approx(0.5 * 0.36 + math.log(0.5) + 0.5 * math.log(2 * math.pi), rel=1e-5)


def test_words_are_judged_one_by_one():
    """Streams of sentences with a class for each word were refused."""
    q = Empirical(nn.Linear(4, 3), pst.likelihoods.Categorical(), [dict(nn.Linear(4, 3).named_parameters())])
    x, y = torch.randn(10, 5, 4), torch.randint(3, (10, 5))
    assert judged(q, (x, y), 1) == judged(q, (x.flatten(0, 1), y.flatten()), 1)
