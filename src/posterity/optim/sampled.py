"""What the optimizers that sample weights share: sampling, collecting statistics, priors, and complete state.

One step of the user's loop is

    with optimizer.sampled_weights():       # weights are a draw from q inside, the means again afterwards
        loss(model(x), y).backward()        # a mean over the batch
    optimizer.step()

Entering several times before ``step`` averages over draws or micro-batches. The averages are ``statistics()``: a few
flat tensors which, averaged over processes in between, make K processes with one draw each the same as one process with
K draws.

A prior is a precision δ and a mean μ₀, shared or by parameter. Tempering by τ targets exp(-N ℓ̄(w) / τ) p(w), whose
precision is N h / τ + δ for a curvature h of ℓ̄. All updates are written with δ̃ = τ δ / N, so that q has the variance
τ / (N (h + δ̃)), and the mean's stationary point is ∇ℓ̄ + δ̃ (w - μ₀) = 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from posterity.networks import trained_network
from posterity.optim.flat_group import FlatGroup
from posterity.optim.flat_optimizer import FlatOptimizer
from posterity.optim.prior import Group
from posterity.posteriors import DiagonalGaussian, Empirical, WeightPosterior
from posterity.probability.likelihoods import Categorical, Likelihood
from posterity.types import Params, PosterityError


class SampledOptimizer(FlatOptimizer):
    """Base of IVON, VOGN and the K-FAC optimizers; each fills in the hooks at the end of the class."""

    _entries = 0  # passes collected since the last step
    _inside = False  # between entering and leaving sampled_weights()
    _step_supports_amp_scaling = True  # a GradScaler then comes to step() itself, which refuses it with a sentence

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state; what the step has collected is forgotten."""
        super().load_state_dict(state_dict)
        self._entries = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch does; between passes it also forgets what the step has collected, such as of a loss that is NaN."""
        super().zero_grad(set_to_none)
        if not self._inside:
            self._entries = 0

    @contextmanager
    def sampled_weights(self, weight: float = 1.0) -> Iterator[None]:
        """Draw weights, let the caller run one backward pass with them, put the means back, keep the statistics.

        Args:
            weight: How much this pass counts beside the others of the step, 1 unless micro-batches differ in size; the
                caller has multiplied the loss by it.

        An exception inside leaves the means in place and discards what the step had collected. Clip gradients inside:
        afterwards they are collected, and ``.grad`` is empty.
        """
        if self._inside:
            raise PosterityError("sampled_weights() was entered again before it was left")
        self._check_trained()
        with torch.no_grad():
            for flat in self._flat:  # all, before anything can fail: all are put back
                flat.read("mean")
        self._inside = True
        finished = False
        try:
            with torch.no_grad():
                for group, flat in self._groups():
                    self._perturb(group, flat)
                    _drop_gradients(flat)
            with self._watch(weight):
                yield
            finished = True
        finally:
            self._inside = False
            with torch.no_grad():
                for flat in self._flat:
                    flat.write("mean")
            if not finished:
                self._discard()
        self._collect(weight)

    def _check_trained(self) -> None:
        """Refuse parameters frozen later, which momentum and prior would go on moving, and thawed ones, which stay."""
        if not all(p.requires_grad for p in self._trained()):
            raise PosterityError("a parameter was frozen after the optimizer was made: make a new one for the others")
        thawed = [p for p in self._left_out if p.requires_grad]  # rarely any, and a group may have been added
        if thawed and not {id(p) for p in thawed} <= set(map(id, self._trained())):
            raise PosterityError("a parameter that was frozen is trained now: make a new optimizer or add a group")

    def _discard(self) -> None:
        self._entries = 0
        for flat in self._flat:
            _drop_gradients(flat)

    @torch.no_grad()
    def _collect(self, weight: float) -> None:
        with_gradient = [p for p in self._trained() if p.grad is not None]
        if not with_gradient:
            raise PosterityError("no gradient arrived: call loss.backward() inside `with optimizer.sampled_weights()`")
        self._check(with_gradient)
        for group, flat in self._groups():
            gradients = [torch.zeros_like(p) if p.grad is None else _dense(p.grad) for p in flat.params]
            _drop_gradients(flat)
            self._add(group, flat, gradients, weight)
        self._entries += 1

    @torch.no_grad()
    def statistics(self, passes: int | None = None) -> list[Tensor]:
        """The means over the passes of this step, as the tensors that processes must average before ``step``.

        Args:
            passes: How many there were; needed where they were replayed on the device, and so were not counted.
        """
        self._entries = self._entries or passes or 0
        if not self._entries:
            raise PosterityError("there is no gradient: call loss.backward() inside `with optimizer.sampled_weights()`")
        tensors = [tensor for flat in self._flat for tensor in self._accumulators(flat)]
        if self._entries > 1:
            torch._foreach_div_(tensors, float(self._entries))
            self._entries = 1
        return tensors

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One update from the statistics collected since the last; clears them.

        Args:
            closure: A forward and backward pass, for trainers that hand it over; it is run with sampled weights, and
                its result returned.
        """
        if hasattr(self, "found_inf"):
            raise PosterityError(
                f"{type(self).__name__} cannot be stepped by a GradScaler, whose scaling would bias the curvature: "
                "use bfloat16 autocast without a scaler"
            )
        self._check_outside("step()")
        loss = None
        if closure is not None:
            with torch.enable_grad(), self.sampled_weights():
                loss = closure()
        self._advance()
        return loss

    @torch._disable_dynamo  # compiled, it would keep the count of steps, and with it the bias corrections, as it was
    def _advance(self) -> None:
        self.statistics()
        for group, flat in self._groups():
            group["step"] += 1
            self._update(group, flat)
        self._entries = 0

    def posterior(self, module: nn.Module, likelihood: Likelihood | None = None) -> WeightPosterior:
        """The posterior that the optimizer has reached, over the parameters of the module it trains.

        Args:
            module: The network whose parameters these are.
            likelihood: How targets arise from its outputs; class logits if not given.
        """
        module = self._own(module)
        likelihood = likelihood or Categorical()
        std = self._stds(module)
        mean = {name: p.detach() for name, p in module.named_parameters()}
        return DiagonalGaussian(module, likelihood, mean, std) if std else Empirical(module, likelihood, [mean])

    def moments(self, module: nn.Module) -> tuple[Params, Params]:
        """Mean and marginal variance of every parameter, by name; zero variance where it is deterministic."""
        posterior = self.posterior(module)
        return posterior.mean(), posterior.variance()

    def _own(self, module: nn.Module) -> nn.Module:
        """The network; refused where its parameters are not the optimizer's, or are draws at the moment."""
        self._check_outside("posterior()")
        own = set(map(id, self._trained()))
        if not any(id(p) in own for p in module.parameters()):
            raise PosterityError("the module has none of the optimizer's parameters: pass what it trains, not a copy")
        return trained_network(module)

    def _check_outside(self, what: str) -> None:
        if self._inside:
            raise PosterityError(f"{what} was called in sampled_weights(), where weights are draws: leave it first")

    @torch.no_grad()
    def _stds(self, module: nn.Module) -> Params:
        """Standard deviations of the parameters that have one, by their names in the module."""
        found: dict[int, Tensor] = {}
        for group, flat in self._groups():
            std = self._std(group, flat)
            if std is not None:
                found |= dict(zip(map(id, flat.params), flat.layout.unflatten(std).values(), strict=True))
        return {name: found[id(p)] for name, p in module.named_parameters() if id(p) in found}

    def _watch(self, weight: float) -> AbstractContextManager[Any]:
        """What else must be on during the user's forward and backward pass."""
        return nullcontext()

    def _check(self, with_gradient: list[Tensor]) -> None:
        """Refuse a pass whose statistics are incomplete."""

    def _perturb(self, group: Group, flat: FlatGroup) -> None:
        """Add noise to the parameters; ``flat["mean"]`` holds their means."""
        raise NotImplementedError

    def _add(self, group: Group, flat: FlatGroup, gradients: list[Tensor], weight: float) -> None:
        """Add one pass to the accumulators, which hold nothing of use while ``_entries`` is 0."""
        raise NotImplementedError

    def _accumulators(self, flat: FlatGroup) -> list[Tensor]:
        """The tensors that passes add to."""
        return [flat["statistics"]]

    def _update(self, group: Group, flat: FlatGroup) -> None:
        """Change the parameters and the state from the accumulated means."""
        raise NotImplementedError

    def _std(self, group: Group, flat: FlatGroup) -> Tensor | None:
        """The standard deviation of every weight of a group; None for weights without noise."""
        raise NotImplementedError


def _dense(gradient: Tensor) -> Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient  # as of an embedding with sparse=True


def _drop_gradients(flat: FlatGroup) -> None:
    for p in flat.params:
        p.grad = None
