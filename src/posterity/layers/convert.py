"""From any network to a Bayesian one: ``variational`` returns a converted copy, and changes nothing else.

Linear and convolutional layers can take their noise by activations (``"local"``, ``"flipout"``). All other weights
(recurrent, attention, embeddings, parametrised modules, parameters that several modules share, a user's own) are drawn
once a pass; where one of these estimators was asked for by name, a warning says which weights it cannot serve. With
every std at zero the copy computes exactly what the original does.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from posterity.layers.blocks import Block, Flipout, Full, Local, LowRank, Radial, Sampled
from posterity.layers.noisy import CONSISTENT, FLIPOUT, LOCAL
from posterity.layers.select import Bayesian, Which, select
from posterity.layers.slots import Slots
from posterity.layers.start import Earlier, Moped, Start, initial_std, starting_prior
from posterity.layers.variational import Variational
from posterity.networks import copied
from posterity.probability.priors import Normal, Prior, check_prior
from posterity.types import Params, PosterityError, PosterityWarning, check_positive

__all__ = ["ESTIMATORS", "FAMILIES", "Family", "LowRankFamily", "Scheme", "convert", "scheme", "variational"]


@runtime_checkable
class Family(Protocol):
    """Builds the distribution of some weights, from where they start."""

    def __call__(self, slots: Slots, mean: Tensor, std: Tensor, prior: Prior, fixed: Tensor | None = None) -> Block:
        """The block, ready to train."""
        ...


@dataclass(frozen=True)
class LowRankFamily:
    """Low rank plus diagonal, with as many directions as asked for."""

    rank: int = 4

    def __call__(self, slots: Slots, mean: Tensor, std: Tensor, prior: Prior, fixed: Tensor | None = None) -> Block:
        """The block, ready to train."""
        return LowRank(slots, mean, std, prior, fixed, self.rank)


@dataclass(frozen=True)
class Scheme:
    """How the weights of a network become random.

    Attributes:
        drawn: The distribution of weights that are drawn once a pass.
        noisy: The distribution of those whose layers are given means and variances.
        layers: The noisy class of every plain layer that takes those.
        flipped: The noisy class of every plain layer that takes one draw with random signs instead.
        insists: The estimator that was asked for by name: weights that it cannot serve are then reported.
    """

    drawn: Family = Sampled
    noisy: Family = Local
    layers: Mapping[type, type] = field(default_factory=dict)
    flipped: Mapping[type, type] = field(default_factory=dict)
    insists: str | None = None


# Local noise differs between the positions of an image and the tokens of a sentence, where a draw of the weights, by
# which a posterior predicts, shares it. Flipout's noise is shared by positions, too; of tokens it cannot know which
# dimension is the example's.
_EXACT = Scheme(
    layers={nn.Linear: CONSISTENT[nn.Linear]},
    flipped={plain: noisy for plain, noisy in CONSISTENT.items() if plain is not nn.Linear},
)

ESTIMATORS = {
    "auto": _EXACT,
    "reparameterised": Scheme(),
    "local": Scheme(layers=LOCAL, insists="local"),
    "flipout": Scheme(flipped=FLIPOUT, insists="flipout"),
}
"""Estimators of a diagonal Gaussian by name."""

FAMILIES: dict[str, Family] = {"diagonal": Sampled, "full": Full, "low-rank": LowRankFamily(), "radial": Radial}
"""Distributions of drawn weights by name."""

LARGEST_FULL = 8192
"""Weights that a full covariance may have: at this number its factor takes a quarter of a gigabyte."""


def variational(
    module: nn.Module,
    *,
    estimator: str = "auto",
    family: str | Family = "diagonal",
    prior: Prior | None = None,
    init_std: Start = 0.01,
    which: Which = None,
    bayesian_bias: bool = False,
    bayesian_norm: bool = False,
) -> Variational:
    """A converted copy of a network, with a distribution over its weights.

    Args:
        module: Any network; it is not changed. Lazy modules must have been called once.
        estimator: Where the noise enters: ``"reparameterised"``, ``"local"``, ``"flipout"``; ``"auto"`` is local for
            Linear, flipout for convolutions, and reparameterised for the others, for Linear on tokens and for layers
            that a pass calls more than once.
        family: ``"diagonal"``; or ``"full"``, ``"low-rank"`` or ``"radial"``, whose weights are drawn.
        prior: p(w); a standard Normal if not given.
        init_std: The std that weights start with, or ``Moped(...)`` to start from a trained network.
        which: Modules by name pattern or type, or ``"last"``; all if not given.
        bayesian_bias: Biases, too.
        bayesian_norm: Normalisation layers, too.
    """
    prior = Normal() if prior is None else prior
    check_prior(prior)
    net = copied(module)
    found = select(net, which, bayesian_bias, bayesian_norm)
    return convert(net, found, scheme(estimator, family), prior, init_std)


def convert(net: nn.Module, found: dict[str, Bayesian], scheme: Scheme, prior: Prior, init_std: Start) -> Variational:
    """Make these parameters of a network random; the network itself is used up."""
    if not isinstance(init_std, Moped | Earlier):
        check_positive(init_std=init_std)
    weights = {name: b.parameter.detach().clone() for name, b in found.items()}
    start = _Start(weights, init_std, starting_prior(init_std, prior, weights))
    noisy, flipped = (
        {name: b for name, b in found.items() if _by_activations(b, found, layers)}
        for layers in (scheme.layers, scheme.flipped)
    )
    drawn = {name: b for name, b in found.items() if name not in noisy | flipped}
    if scheme.insists:
        _say_what_is_drawn(scheme.insists, noisy | flipped, drawn)
    swapped = _swap(net, noisy, scheme.layers) | _swap(net, flipped, scheme.flipped)
    parts = ((scheme.drawn, drawn), (scheme.noisy, noisy), (Flipout, flipped))
    blocks = [start.block(kind, part) for kind, part in parts if part]
    _keep_freed_memory()
    return Variational(net, blocks, swapped)


def scheme(estimator: str, family: str | Family) -> Scheme:
    """The scheme that these names stand for; unknown names, and names that do not go together, are refused."""
    if estimator not in ESTIMATORS:
        raise PosterityError(f"unknown estimator {estimator!r}; there are {', '.join(ESTIMATORS)}")
    if isinstance(family, str):
        if family not in FAMILIES:
            raise PosterityError(f"unknown family {family!r}; there are {', '.join(FAMILIES)}")
        family = FAMILIES[family]
    if family is Sampled:
        return ESTIMATORS[estimator]
    if ESTIMATORS[estimator].insists:
        raise PosterityError(f"the {estimator} estimator is for diagonal Gaussians: use estimator='reparameterised'")
    return Scheme(drawn=family)


@dataclass(frozen=True, eq=False)
class _Start:
    """Weights, initial stds and prior of a conversion."""

    weights: Params
    init_std: Start
    prior: Prior

    def block(self, family: Family, part: dict[str, Bayesian]) -> Block:
        """The distribution of these parameters, which are taken out of the network."""
        means = {name: self.weights[name] for name in part}
        slots = Slots.taken_out(means, {name: b.places for name, b in part.items()})
        stds = {name: initial_std(self.init_std, w, name) for name, w in means.items()}
        if family is Full and slots.layout.total > LARGEST_FULL:
            raise PosterityError(
                f"a full covariance of {slots.layout.total:,} weights is too large (at most {LARGEST_FULL:,}): "
                "select fewer with which='last', or use family='low-rank'"
            )
        flatten, fixed = slots.layout.flatten, _padding(slots)
        if family is Full and fixed is not None:
            raise PosterityError(
                "an embedding's padding row has no noise, and a full covariance has it everywhere: leave the embedding "
                "out (which=...), or use family='low-rank'"
            )
        return family(slots, flatten(means), flatten(stds), self.prior, fixed)


def _by_activations(bayesian: Bayesian, found: dict[str, Bayesian], layers: Mapping[type, type]) -> bool:
    """Whether the one module that uses a parameter can take the noise of all its parameters by activations."""
    owner = bayesian.places[0][0]
    siblings = [b for b in found.values() if any(module is owner for module, _ in b.places)]
    names = {attribute for b in siblings for _, attribute in b.places}
    return type(owner) in layers and names in ({"weight"}, {"weight", "bias"}) and not any(b.tied for b in siblings)


def _say_what_is_drawn(estimator: str, noisy: dict[str, Bayesian], drawn: dict[str, Bayesian]) -> None:
    if not noisy:
        raise PosterityError(
            f"none of the selected weights belongs to a layer with a {estimator} estimator (Linear, Conv, "
            "ConvTranspose, unshared): use estimator='reparameterised'"
        )
    if drawn:
        warnings.warn(
            f"no {estimator} estimator for {', '.join(drawn)}: these weights are drawn once a pass instead",
            PosterityWarning,
            stacklevel=4,
        )


def _swap(net: nn.Module, noisy: dict[str, Bayesian], layers: Mapping[type, type]) -> dict[str, type[nn.Module]]:
    """Give the layers that take noise by activations their noisy class; their plain ones by name."""
    owners = {id(module) for b in noisy.values() for module, _ in b.places}
    swapped = {}
    for name, module in net.named_modules():
        if id(module) in owners:
            swapped[name] = type(module)
            module.__class__ = layers[type(module)]
    return swapped


def _padding(slots: Slots) -> Tensor | None:
    """Marks the padding rows of embeddings, which get no gradient unless another layer has the weight, too."""
    marks = {}
    for name, shape, places in zip(slots.layout.names, slots.layout.shapes, slots.places, strict=True):
        marks[name] = torch.zeros(shape, dtype=torch.bool)
        module, tied = places[0][0], len(places) > 1
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.padding_idx is not None and not tied:
            marks[name][module.padding_idx] = True
    fixed = slots.layout.flatten(marks)
    return fixed if bool(fixed.any()) else None


def _keep_freed_memory() -> None:
    """Let the C library keep blocks of up to 32 MB when they are freed, instead of asking the kernel anew every step.

    glibc raises that limit to the largest block it has seen freed; a fresh 1 MB tensor then costs a quarter.
    """
    torch.empty(2**23 - 2**12)
