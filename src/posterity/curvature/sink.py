"""Where the layers of one captured backward pass put their squared gradients."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from posterity.curvature.outer import Workspace
from posterity.types import Params, PosterityError
from posterity.unrolled import Forward as Forward

Made = TypeVar("Made")

_OTHERS = "IVON, SWAG and Laplace(structure='last-layer') take such networks"
SECOND_BATCH = "a second batch came in one pass: enter sampled_weights() for every backward pass"


class Pass:
    """What the layers of one captured backward pass share.

    Attributes:
        weight: The loss was multiplied by this before the backward pass.
        examples: The size of the batch, as the first layer to report saw it.
        unsure: Whether a gradient's second dimension, too, was as long as the batch, so that examples might lie there.
        reported: The call of each layer that took part, by layer name.
        workspace: Buffers for all layers, which never run at the same time.
    """

    def __init__(self) -> None:
        self.workspace = Workspace()
        self.restart(1.0)

    def restart(self, weight: float) -> None:
        """Forget the pass before."""
        self.weight = weight
        self.examples: int | None = None
        self.unsure = False
        self.reported: dict[str, object] = {}
        self._made: dict[object, Any] = {}

    def once(self, key: object, make: Callable[[], Made]) -> Made:
        """What ``make`` gives, made when it is first asked for in this pass."""
        if key not in self._made:
            self._made[key] = make()
        made: Made = self._made[key]
        return made

    def end(self) -> None:
        """Let go of the graph."""
        self._made.clear()

    def check_complete(self, owned: Mapping[str, Collection[Tensor]], with_gradient: Collection[Tensor]) -> None:
        """Refuse a pass in which a parameter got a gradient and its layer did not report."""
        silent = [(label, own) for label, own in owned.items() if label not in self.reported]
        if silent:
            got = {id(p) for p in with_gradient}
            for label, own in silent:
                if any(id(p) in got for p in own):
                    raise PosterityError(f"a parameter of {label} was used outside its forward, unwatched")


class Sink:
    """Where one layer puts its squares: running sums by the layer's own parameter names."""

    def __init__(self, label: str, sums: Params, shared: Pass) -> None:
        self.label, self.sums, self.shared = label, sums, shared

    @property
    def workspace(self) -> Workspace:
        """Buffers to compute in."""
        return self.shared.workspace

    def report(self, call: object, gradient: Tensor) -> float:
        """Announce one backward through one call of the layer; returns the factor that makes a sum of squares a mean.

        The gradients of a mean loss over B examples are 1/B of each example's own, so Σ (B g)² / B = B Σ g². A loss
        that was also multiplied by w has gradients w times as large and counts w times: B / w · Σ g².
        """
        shared = self.shared
        if gradient.dtype == torch.float16:
            raise PosterityError(f"squared gradients underflow in float16, met at {self.label}; use bfloat16 autocast")
        if shared.reported.setdefault(self.label, call) is not call:
            raise PosterityError(
                f"{self.label} was used twice in one pass: Kronecker factors are of layers that are used once, and "
                f"squares of gradients add up over a layer's own uses in one call of the network; {_OTHERS}"
            )
        examples = gradient.shape[0]
        shared.examples = shared.examples or examples
        if examples != shared.examples:
            raise PosterityError(
                f"{self.label} saw a leading dimension of {examples} where the batch has {shared.examples} examples, "
                f"and examples must stay the leading dimension throughout; {_OTHERS}"
            )
        shared.unsure |= gradient.dim() > 2 and gradient.shape[1] == examples
        return examples / shared.weight


Rule = Callable[[Any, Forward, Sink], Forward]
"""Makes a layer's forward for the time of a capture from the layer, its own forward, and where its squares go."""


def watched(original: Forward, backward: Callable[[Tensor, Tensor, object], None]) -> Forward:
    """A forward that calls ``backward(input, output gradient, call)`` once the gradient of its output is known."""

    def forward(x: Tensor) -> Tensor:
        out = original(x)
        if out.requires_grad:
            inputs, call = x.detach(), object()
            out = out.clone() if out._is_view() else out  # an in-place activation would take a view's hook away
            out.register_hook(lambda gradient: backward(inputs, gradient, call))
        return out

    return forward
