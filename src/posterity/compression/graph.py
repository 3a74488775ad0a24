"""A posterior's whole prediction as one ONNX graph: what a server needs to answer with uncertainty, without torch.

Two forms, with the same outputs. The **draws** form holds n networks of the posterior side by side and averages them;
any posterior whose draws are sets of weights has it. The **moments** form passes mean and variance of every activation
through the network once (``posterity.prediction.moments``); it is as big as two networks, and needs independent
Gaussian weights. Either computes what ``posterior.predict`` does, and its file appears only when onnxruntime has given
the same answers from it.

Outputs, one row an input:

    classes    probs, entropy, aleatoric, epistemic      in nats, entropy = aleatoric + epistemic
    numbers    mean, std, aleatoric, epistemic           variances, std² = aleatoric + epistemic
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, SupportsIndex

import torch
from torch import Tensor, nn

from posterity.compression.export import write_onnx
from posterity.compression.pipeline import made_up
from posterity.networks import duplicate
from posterity.posteriors.base import Posterior
from posterity.prediction.moments import Propagation, normal_points
from posterity.probability.likelihoods import Likelihood
from posterity.probability.simplex import entropy, moments
from posterity.types import PosterityError

__all__ = ["DrawsForm", "MomentsForm", "export"]

CLASSES = ("probs", "entropy", "aleatoric", "epistemic")
NUMBERS = ("mean", "std", "aleatoric", "epistemic")


def export(
    posterior: Posterior,
    path: str | Path,
    draws: int | Literal["moments"] = 32,
    *,
    example: Tensor | None = None,
    tolerance: float = 1e-4,
) -> int:
    """Write a posterior's prediction as one ONNX graph, after onnxruntime has given the same answers from it.

    Args:
        posterior: What to serve; its network takes one tensor.
        path: Where the file goes.
        draws: How many networks the graph holds, or ``"moments"`` for one pass of means and variances.
        example: Inputs to trace and compare with; made up from the posterior's own record if not given.
        tolerance: The largest difference allowed, relative to outputs above one.

    Returns:
        The size of the file in bytes.
    """
    example = _example(posterior, example)
    form = MomentsForm(posterior, example) if draws == "moments" else DrawsForm(posterior, draws)
    names = CLASSES if posterior.likelihood.classifies else NUMBERS
    return write_onnx(form, example, path, tolerance, names)


class DrawsForm(nn.Module):
    """The first n draws of a posterior as one network, with the prediction's parts as outputs."""

    def __init__(self, posterior: Posterior, draws: int) -> None:
        super().__init__()
        if not isinstance(draws, SupportsIndex) or draws < 1:
            raise PosterityError(f"draws must be a positive number or 'moments', got {draws!r}")
        samples = posterior.samples(draws)
        if samples is None:
            raise PosterityError(
                f"the draws of {type(posterior).__name__} are not sets of weights, so no graph can hold them"
            )
        # One after the other and not under vmap, whose rules for convolutions fix the size of the batch.
        self.networks = nn.ModuleList(_with(posterior.module, {**params, **buffers}) for params, buffers in samples)
        self.likelihood = posterior.likelihood

    def forward(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """The prediction's parts, in the order of ``CLASSES`` or ``NUMBERS``."""
        return parts(self.likelihood, torch.stack([network(inputs) for network in self.networks]))


class MomentsForm(nn.Module):
    """A posterior's single-pass prediction as one network, with the same outputs."""

    points: Tensor

    def __init__(self, posterior: Posterior, example: Tensor) -> None:
        super().__init__()
        posterior = posterior.to("cpu")
        self.propagation = Propagation(posterior.module, *posterior.independent_moments())
        self.likelihood = posterior.likelihood
        with torch.no_grad():
            mean = self.propagation.moments(example.cpu()).mean
        self.register_buffer("points", normal_points(mean[0].numel()).to(mean).view(-1, 1, *mean.shape[1:]))

    def forward(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """The prediction's parts, in the order of ``CLASSES`` or ``NUMBERS``."""
        mean, variance = self.propagation.moments(inputs)
        known = self.likelihood.moments(mean, variance)
        return parts(self.likelihood, mean + variance.sqrt() * self.points) if known is None else numbers(*known)


def parts(likelihood: Likelihood, outputs: Tensor) -> tuple[Tensor, ...]:
    """What a prediction is made of, from outputs [draws, batch, ...], in tensor operations alone."""
    if likelihood.classifies:
        each = likelihood.probs(outputs)
        probs, aleatoric = each.mean(0), entropy(each).mean(0)
        return probs, entropy(probs), aleatoric, entropy(probs) - aleatoric
    mean, epistemic = moments(likelihood.mean(outputs))
    return numbers(mean, likelihood.variance(outputs).mean(0), epistemic)


def numbers(mean: Tensor, aleatoric: Tensor, epistemic: Tensor) -> tuple[Tensor, ...]:
    """The parts of a regression in the order of ``NUMBERS``."""
    return mean, (aleatoric + epistemic).sqrt(), aleatoric, epistemic


def _with(module: nn.Module, tensors: dict[str, Tensor]) -> nn.Module:
    network = duplicate(module)
    network.load_state_dict(tensors, strict=False)
    return network


def _example(posterior: Posterior, example: Tensor | None) -> Tensor:
    if not isinstance(posterior, Posterior):
        raise PosterityError(f"export writes posteriors, got {type(posterior).__name__}: for a network use to_onnx")
    if example is None and posterior.inputs is None:
        raise PosterityError("export needs inputs to trace the network with: give example=")
    own = next(posterior.module.parameters()).dtype
    if example is not None and posterior.inputs is not None:
        posterior.inputs.check(example, own)
    made = example if example is not None or posterior.inputs is None else made_up(posterior.inputs, own)
    if not isinstance(made, Tensor):
        raise PosterityError("export writes networks that take one tensor, and this one takes several")
    return made
