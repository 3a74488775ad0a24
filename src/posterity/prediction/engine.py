"""Draws in, Prediction out.

Draws that are sets of weights take the fastest way through the network (``passes``); others are functions, called one
after the other. They leave only sums (``accumulate``), so memory does not grow with their number. Predictions of
several threads take turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from threading import RLock
from typing import Literal, SupportsIndex

import torch
from torch import Tensor

from posterity.calling import finite_check, map_inputs, num_examples, tensors_of
from posterity.prediction.accumulate import accumulator
from posterity.prediction.moments import predict_by_moments
from posterity.prediction.passes import Compute, DrawsFunctions, Passes
from posterity.prediction.prediction import Prediction
from posterity.types import Inputs, PosterityError

__all__ = ["predict"]

_IN_TURN = RLock()
"""Threads take turns: a pass puts a draw's weights into the network itself, and dropout uses torch's one generator."""


@torch.no_grad()
def predict(
    posterior: DrawsFunctions,
    inputs: Inputs,
    draws: int | Literal["auto", "moments"] = 32,
    *,
    generator: torch.Generator | None = None,
    keep_samples: bool = False,
    tolerance: float = 0.01,
    max_draws: int = 1024,
    compute: Compute | None = None,
) -> Prediction:
    """Average the predictions of ``draws`` networks.

    Args:
        posterior: Where networks are drawn from.
        inputs: A tensor, tuple or dictionary of tensors, on any device; the prediction comes back on theirs.
        draws: How many networks; ``"auto"``: until every probability, or mean, has a standard error below
            ``tolerance``; ``"moments"``: none, but one pass of means and variances (independent Gaussian weights only).
        generator: Noise; the posterior's own seed if not given, so that the same call gives the same answer.
        keep_samples: Also keep every draw's own prediction.
        tolerance: For ``"auto"``: the Monte Carlo error aimed at.
        max_draws: For ``"auto"``: where to stop all the same, or with the last draw of a network with BatchNorm.
        compute: How to compute it.
    """
    if posterior.inputs is not None:
        posterior.inputs.check(inputs, next(posterior.module.parameters()).dtype)
    finite = finite_check(inputs)
    if num_examples(inputs) == 0:
        raise PosterityError("there are no inputs to predict")
    if draws not in ("auto", "moments") and (not isinstance(draws, SupportsIndex) or int(draws) < 1):
        raise PosterityError(f"draws must be a positive number, 'auto' or 'moments', got {draws!r}")
    count = min(max_draws, posterior.most_draws or max_draws) if isinstance(draws, str) else int(draws)
    home, device = tensors_of(inputs)[0].device, next(posterior.module.parameters()).device
    inputs = map_inputs(inputs, lambda t: t.to(device))
    if home.type == "cpu":
        finite()  # elsewhere it is read at the end, so that the device is not waited for
    with _IN_TURN:
        if draws == "moments":
            prediction = predict_by_moments(posterior, inputs)
        else:
            sums = accumulator(posterior.likelihood, keep_samples)
            for outputs in _drawn(posterior, inputs, count, generator, compute or Compute()):
                sums.add(outputs)
                if draws == "auto" and sums.count >= 2 and float(sums.error()) < tolerance:
                    break
            prediction = sums.finish()
    finite()
    return prediction.to(home)


def _drawn(
    posterior: DrawsFunctions, inputs: Inputs, count: int, generator: torch.Generator | None, compute: Compute
) -> Iterator[Tensor]:
    """What the draws make of the inputs, some draws at a time."""
    if compute not in posterior.ways and posterior.samples(count, generator) is None:
        yield from posterior.drawn_outputs(inputs, count, generator, compute.block)
        return
    if compute not in posterior.ways:
        posterior.ways[compute] = Passes(posterior.module, compute)
    network: Passes = posterior.ways[compute]
    way = network.way(posterior, inputs, count)
    for chunk in network.chunks(posterior, count, generator):
        yield network(chunk, inputs, way)
