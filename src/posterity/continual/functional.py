"""Functional regularisation with a memory: the network's answers to remembered inputs are held where they were.

FROMP's idea (Pan et al. 2004.14070): the prior of the next task is over functions, at remembered inputs xₘ, not over
weights. Here it is the plain form, with the predictive probabilities p̂ₘ that the tasks before have left,

    −log p(w) = strength · Σₘ nₘ KL(p̂ₘ ‖ p_w(· | xₘ)) + the base prior,

where nₘ is how many examples a remembered one stands for. FROMP's Gaussian-process kernel between the remembered
inputs is left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from posterity.continual.memory import Memory
from posterity.continual.strategy import Past, Strategy
from posterity.methods import MAP, Method
from posterity.probability.likelihood import per_example
from posterity.probability.likelihoods import Categorical, Likelihood, MultiHead
from posterity.types import PosterityError, check_positive

__all__ = ["Functional"]


@dataclass(frozen=True, kw_only=True)
class Functional(Strategy):
    """Hold the network's probabilities at remembered inputs.

    Attributes:
        strength: What the divergence is multiplied by; 1 lets the memory of a task count as all its examples did.
    """

    method: Method = MAP()
    memory: Memory | None = Memory(200)
    strength: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(strength=self.strength)
        if type(self.method) is not MAP:
            raise PosterityError(f"functional regularisation is of a point: use MAP, got {self.method!r}")

    def method_for(self, past: Past, likelihood: Likelihood) -> Method:
        """MAP with the divergence in its penalty."""
        if not isinstance(likelihood, Categorical):
            raise PosterityError(f"functional regularisation holds the logits of classes, and {likelihood} has none")
        if past.posterior is None or not past.memory:
            return self.method
        inputs = torch.cat([x for x, _ in past.memory]).to(past.posterior.device)
        logits = torch.cat([past.posterior.module(part).detach() for part in inputs.split(1000)])
        other = _other_heads(past, likelihood, logits)
        probs = (logits / likelihood.temperature).masked_fill(other, -math.inf).softmax(-1)
        weights = torch.cat(
            [torch.full((len(y),), n / len(y)) for (_, y), n in zip(past.memory, past.sizes, strict=True)]
        )
        return Held(
            prior=self.method.prior,
            inputs=inputs,
            probs=probs,
            other=other,
            weights=self.strength * weights.to(probs),
            divisor=logits.new_tensor(likelihood.temperature),
        )


def _other_heads(past: Past, likelihood: Likelihood, logits: Tensor) -> Tensor:
    """Marks the logits that do not belong to an example's head."""
    other = torch.zeros_like(logits, dtype=torch.bool)
    if not isinstance(likelihood, MultiHead):
        return other
    start = 0
    for head, (_, targets) in zip(past.heads, past.memory, strict=True):
        end = start + len(targets)
        other[start:end] = True
        other[start:end, ..., list(head or ())] = False
        start = end
    return other


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Held(MAP):
    """MAP that holds the probabilities at some inputs."""

    inputs: Tensor
    probs: Tensor
    other: Tensor
    weights: Tensor
    divisor: Tensor

    def penalty(self, module: nn.Module, temperature: float) -> Tensor | float:
        """Σ weight · KL(p̂ ‖ p_w), up to the entropy of p̂, and the base prior."""
        logits = module(self.inputs) / self.divisor  # by the likelihood's temperature
        log_probs = logits.masked_fill(self.other, -math.inf).log_softmax(-1)
        kept = -(self.probs * log_probs.masked_fill(self.other, 0.0)).sum(-1)
        return super().penalty(module, temperature) + (self.weights * per_example(kept)).sum()

    def __repr__(self) -> str:
        shown = ", ".join(f"{f.name} {float(getattr(self, f.name).double().mean()):.9g}" for f in fields(self)[1:])
        return f"Held(prior={self.prior!r}, {shown})"
