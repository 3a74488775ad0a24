"""Posteriors on disk: ``save`` and ``load``. The network's code is not stored: the user brings the module again."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from posterity.calling import InputSpec
from posterity.devices import find_device
from posterity.files import read_state, write_state
from posterity.networks import check_same_network, load_buffers, plain_copy, precision_of
from posterity.posteriors.base import Posterior, WeightPosterior
from posterity.posteriors.conformal import Conformal
from posterity.posteriors.empirical import Empirical
from posterity.posteriors.gaussian import DiagonalGaussian, FullGaussian, LowRankGaussian
from posterity.posteriors.implicit import Implicit
from posterity.posteriors.kronecker import KroneckerGaussian
from posterity.posteriors.linearised import Linearised
from posterity.posteriors.mixture import Mixture
from posterity.posteriors.stochastic import Stochastic
from posterity.probability import likelihoods
from posterity.probability.likelihoods import Likelihood
from posterity.types import PosterityError

__all__ = ["KINDS", "load", "save"]

KINDS: dict[str, type[Posterior]] = {
    DiagonalGaussian.kind: DiagonalGaussian,
    FullGaussian.kind: FullGaussian,
    LowRankGaussian.kind: LowRankGaussian,
    Empirical.kind: Empirical,
    Stochastic.kind: Stochastic,
    Implicit.kind: Implicit,
    Mixture.kind: Mixture,
    Conformal.kind: Conformal,
    KroneckerGaussian.kind: KroneckerGaussian,
    Linearised.kind: Linearised,
}
"""Every posterior that a file can hold, by the name it has there."""


def save(posterior: Posterior, path: str | Path) -> None:
    """Write a posterior to one safetensors file, whole or not at all."""
    write_state(path, _packed(posterior), "posterior")


def load(
    path: str | Path,
    module: nn.Module,
    device: torch.device | str = "cpu",
    *,
    likelihood: type[Likelihood] | None = None,
) -> Posterior:
    """Read a posterior for this network.

    Args:
        path: What ``save`` wrote.
        module: A network of the same architecture; its weights and their precision do not matter and are not changed.
        device: Where the posterior goes.
        likelihood: The class of a likelihood of your own, whose fields the file holds; posterity's it knows by name.
    """
    if not isinstance(module, nn.Module):
        raise PosterityError(f"a posterior is read for a network, got {module!r}")
    state = read_state(path, "posterior", find_device(device))
    network, precision = plain_copy(module).to(device), state.get("precision")  # files of before it was kept have none
    if precision and precision != precision_of(network):
        network = network.to(getattr(torch, precision))
    return _unpacked(state, network, likelihood)


def _packed(posterior: Posterior) -> dict[str, Any]:
    state: dict[str, Any] = {
        "kind": posterior.kind,
        "likelihood": {"name": type(posterior.likelihood).__name__, **asdict(posterior.likelihood)},
        "inputs": asdict(posterior.inputs) if posterior.inputs else None,
        "seed": posterior.seed,
        "architecture": _architecture(posterior.module),
        "precision": precision_of(posterior.module),
        "buffers": dict(posterior.module.named_buffers()),
        "state": posterior.state(),
    }
    if isinstance(posterior, WeightPosterior):
        state |= {"bank": posterior.bank, "banked_in": posterior.banked_in, "pruned": posterior.pruned}
    if posterior.parts:
        state["parts"] = [_packed(part) for part in posterior.parts]
    return state


def _unpacked(state: dict[str, Any], module: nn.Module, own: type[Likelihood] | None) -> Posterior:
    if state["kind"] not in KINDS:
        raise PosterityError(f"unknown kind of posterior {state['kind']!r}; there are {', '.join(KINDS)}")
    check_same_network("the file", state["architecture"], _architecture(module))
    if "parts" in state:
        state["state"] |= {"parts": [_unpacked(part, module, own) for part in state["parts"]]}
    likelihood = _likelihood(own, **state["likelihood"])
    posterior = KINDS[state["kind"]].rebuild(module, likelihood, state["state"])
    load_buffers(posterior.module, state["buffers"])
    if state["inputs"]:
        shapes = tuple(tuple(shape) for shape in state["inputs"]["shapes"])
        posterior.inputs = InputSpec(shapes, tuple(state["inputs"]["dtypes"]))
    posterior.seed = state["seed"]
    if isinstance(posterior, WeightPosterior):
        posterior.bank, posterior.banked_in = state["bank"], state.get("banked_in")
        posterior.pruned = state.get("pruned", False)
    return posterior


def _likelihood(own: type[Likelihood] | None, name: str, **fields: Any) -> Likelihood:
    """The likelihood that the file names: one of the user's own, or of the library."""
    if own is not None and own.__name__ == name:
        return own(**fields)
    if own is not None:
        raise PosterityError(f"the file has the likelihood {name}, got likelihood={own.__name__}")
    if name not in likelihoods.KNOWN:
        raise PosterityError(f"the file has a likelihood of your own, {name}: give its class, likelihood={name}")
    return likelihoods.by_name(name, **fields)


def _architecture(module: nn.Module) -> dict[str, list[int]]:
    return {name: list(p.shape) for name, p in module.named_parameters()}
