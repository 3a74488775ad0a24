"""The mean and the mean square of per-example gradients, in one backward pass and without per-example gradients.

For the loss ℓ̄(w) = 1/B Σᵢ ℓᵢ(w) of a batch,

    mean gradient  ĝ = 1/B Σᵢ ∇ℓᵢ          mean square  ĥ = 1/B Σᵢ (∇ℓᵢ)²,

where ĥ is the diagonal of the empirical Fisher matrix, which VOGN takes for the curvature
(https://arxiv.org/abs/1906.02506). While a capture is on, each layer's forward is replaced by one that adds its part
of ĥ as the backward pass goes by; nothing is left on the module afterwards.

Before a BatchNorm layer in training mode, whose statistics all examples share, no ∇ℓᵢ exists; there it is B times the
part of ∇ℓ̄ that goes through example i, so that ĝ is still their mean. With the statistics held fixed it would not be.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from posterity.calling import call, map_inputs
from posterity.curvature.copies import Copies
from posterity.curvature.generic_rule import generic
from posterity.curvature.linear_rule import linear
from posterity.curvature.sink import Forward, Pass, Rule, Sink
from posterity.curvature.units import RULES, TURNING, has_rule, parts_of, units
from posterity.networks import buffers_kept, is_batchnorm, parameter_uses
from posterity.types import Inputs, Params, PosterityError, PosterityWarning
from posterity.unrolled import replaced_forwards

Loss = Callable[[Any, Tensor], Tensor]
"""A mean over examples: (outputs, targets) → scalar."""


def squared_gradients(module: nn.Module, loss: Loss, batch: tuple[Inputs, Tensor]) -> Params:
    """The mean over examples of squared gradients, by parameter name.

    Args:
        module: Any module whose examples stay the leading dimension; its buffers and gradients are left alone.
        loss: A mean over examples, such as ``F.cross_entropy``.
        batch: Inputs and targets.

    Example:
        >>> layer = nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.ones_(layer.weight)
        >>> x, y = torch.tensor([[1.0], [3.0]]), torch.zeros(2, 1)
        >>> squared_gradients(layer, lambda f, y: (0.5 * (f - y) ** 2).mean(), (x, y))["weight"].item()
        41.0
    """
    return gradient_moments(module, loss, batch)[1]


def gradient_moments(module: nn.Module, loss: Loss, batch: tuple[Inputs, Tensor]) -> tuple[Params, Params]:
    """The mean and the mean square of per-example gradients, by parameter name, from one backward pass."""
    watch = SquareCapture(module)
    params: Params = {name: p for name, p in module.named_parameters() if p.requires_grad}
    found = _watched(watch, module, loss, batch, params)
    squares, count = watch.sums, len(batch[1])
    if watch.unsure and count > 2:
        squares = {name: total.clone() for name, total in watch.sums.items()}  # what follows adds to the sums
        two = map_inputs(batch[0], lambda t: t[:2] if t.shape[:1] == (count,) else t), batch[1][:2]
        _watched(watch, module, loss, two, params)
    return {name: found.get(name, torch.zeros_like(p)) for name, p in params.items()}, squares


def _watched(
    watch: SquareCapture, module: nn.Module, loss: Loss, batch: tuple[Inputs, Tensor], params: Params
) -> Params:
    """The gradients of one watched pass, of those parameters that have some."""
    inputs, targets = batch
    with buffers_kept(module), torch.enable_grad(), watch.on():
        outputs = call(module, inputs)
        check_is_mean(loss, outputs, targets)
        gradients = torch.autograd.grad(loss(outputs, targets), list(params.values()), allow_unused=True)
    found = {name: g for name, g in zip(params, gradients, strict=True) if g is not None}
    watch.check_complete([params[name] for name in found])
    return found


@contextmanager
def capture(module: nn.Module) -> Iterator[Params]:
    """Collect squared gradients of the backward pass of a mean loss inside the context; the sums are filled by it."""
    watch = SquareCapture(module)
    with watch.on():
        yield watch.sums


@dataclass(frozen=True)
class _Unit:
    """A part of a network: its path, its own trainable parameters by the names it gives them, and the rule for them."""

    path: str
    module: nn.Module
    own: Params
    rule: Rule

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"{self.path or 'the module'} ({type(self.module).__name__})"

    def name(self, own: str) -> str:
        """The network's name for one of its parameters."""
        return f"{self.path}.{own}" if self.path else own


class SquareCapture:
    """Adds the mean squared gradients of each backward pass that runs while it is on to ``sums``.

    Args:
        module: Whose layers to watch. What has no rule runs under vmap: layers a second time, with a warning.
        sums: Where to add, by parameter name; fresh zeros by default.
        skip: Names of layers to leave alone.
    """

    def __init__(self, module: nn.Module, sums: Params | None = None, skip: Collection[str] = ()) -> None:
        self._pass = Pass()
        self.copies = Copies(self._pass)
        self._uses: Counter[int] = Counter()
        found = [_Unit(path, unit, own, self._rule(unit)) for path, unit, own in units(module)]
        self._warn_of_second_runs(found)
        self._used_once = {unit.label: unit.own.values() for unit in found if unit.rule is not generic}
        watched = [unit for unit in found if unit.path not in skip]
        self._owned = {unit.label: unit.own.values() for unit in watched}
        names = {unit.name(own) for unit in watched for own in unit.own}
        params = {name: p for name, p in module.named_parameters() if name in names}
        self.sums: Params = {name: _zeros(p) if sums is None else sums[name] for name, p in params.items()}
        forwards = {unit.module: self._watch(unit) for unit in watched}
        # Layers that must give examples first, and whether they may be used several times, for their uses add up.
        firsts = {
            unit.module: unit.rule in (linear, self.copies.forward)
            for unit in watched
            if unit.module is not module and unit.rule not in TURNING
        }
        whole = self._whole(module, forwards.pop(module, None), firsts)
        self._forwards = [*forwards.items(), *([(module, whole)] if whole else [])]

    def _rule(self, unit: nn.Module) -> Rule:
        if has_rule(unit):
            return RULES[type(unit).forward]
        return self.copies.forward if parts_of(unit) else generic

    def _watch(self, unit: _Unit) -> Forward:
        """What a unit does in a capture."""
        layer, original = unit.module, unit.module.forward
        sink = Sink(unit.label, {own: self.sums[unit.name(own)] for own in unit.own}, self._pass)
        self.copies.owns(sink, unit.own)
        forward = unit.rule(layer, original, sink)
        self.copies.inside(layer, original, forward if unit.rule in RULES.values() else None)
        return forward

    def _whole(self, module: nn.Module, forward: Forward | None, firsts: dict[nn.Module, bool]) -> Forward | None:
        """The forward of the network itself, which is a unit with a forward already where it has its own parameters."""
        for layer in filter(is_batchnorm, module.modules()):
            if not any(p.requires_grad for p in layer.parameters()):
                self.copies.inside(layer, layer.forward, layer.forward)
        if firsts:
            sink = Sink(f"the module ({type(module).__name__})", {}, self._pass)
            forward = self.copies.whole(module, forward, firsts, sink)
        return _counting(forward or module.forward, self._uses) if self._used_once else forward

    def _warn_of_second_runs(self, found: list[_Unit]) -> None:
        """Warn of layers without a rule, unless a module above takes them along in its vmap."""
        above = tuple(f"{unit.path}." if unit.path else "" for unit in found if unit.rule == self.copies.forward)
        for unit in found:
            if unit.rule is generic and not unit.path.startswith(above):
                message = f"{unit.label} has no rule for squared gradients; it is run a second time, example by example"
                warnings.warn(message, PosterityWarning, stacklevel=4)

    @contextmanager
    def on(self, weight: float = 1.0) -> Iterator[None]:
        """Watch one backward pass, of a loss that was multiplied by ``weight``."""
        self._pass.restart(weight)
        try:
            with replaced_forwards(self._forwards):
                yield
        finally:
            self._pass.end()

    @property
    def unsure(self) -> bool:
        """Whether the last pass had as many positions as examples somewhere; another batch size tells them apart."""
        return self._pass.unsure

    def needed(self, params: Iterable[Tensor]) -> list[GradientEdge]:
        """What a backward pass must reach: the parameters, where squares are taken."""
        return [get_gradient_edge(p) for p in params]

    def check_complete(self, with_gradient: Collection[Tensor]) -> None:
        """Refuse a pass in which a parameter got a gradient without its layer being called, or from elsewhere, too."""
        self._pass.check_complete(self._owned, with_gradient)
        if not self._uses:
            return
        for label, own in self._used_once.items():
            if any(self._uses[id(p)] > 1 for p in own):
                raise PosterityError(
                    f"a parameter of {label} was used outside its forward, too, unwatched: give that use to a module "
                    "of its own that holds the parameter"
                )
        self._used_once.clear()  # what is so in one pass is so in all


def _counting(original: Forward, uses: Counter[int]) -> Forward:
    """A network's forward, after whose first pass ``uses`` tells how often each parameter was used."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        outputs = original(*args, **kwargs)
        if not torch.compiler.is_compiling() and not uses:
            uses.update(parameter_uses(outputs))
        return outputs

    return forward


def _zeros(p: Tensor) -> Tensor:
    return torch.zeros_like(p, memory_format=torch.contiguous_format, requires_grad=False)


@torch.no_grad()
def check_is_mean(loss: Loss, outputs: Any, targets: Tensor) -> None:
    """Refuse a loss that is not the mean of what it is on the two halves of the batch."""
    n = len(outputs) if isinstance(outputs, Tensor) else 0
    if n < 2:
        return
    outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))  # in bfloat16 means are 1% off by rounding
    first, rest = slice(n // 2), slice(n // 2, n)
    whole, one, other = (float(loss(outputs[part], targets[part])) for part in (slice(n), first, rest))
    mean = (n // 2 * one + (n - n // 2) * other) / n
    if abs(whole - mean) > 1e-2 * max(abs(whole), abs(one), abs(other)):
        raise PosterityError(
            f"the loss must be a mean over examples: it is {whole:.4g} on the batch, and its two halves say {mean:.4g}"
        )
