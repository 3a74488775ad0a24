"""What a posterior is: a distribution over functions; and over weights, for those who need more.

A posterior never changes. ``draws`` gives whole functions, each consistent over all inputs; ``samples`` their weights
where a draw is a set of weights. Without a generator both start from the posterior's own seed, so the same question
gets the same answer.
"""

from __future__ import annotations

import copy
import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from posterity.calling import Draw, InputSpec, as_batches, num_examples
from posterity.networks import duplicate, plain_copy, precision_of
from posterity.prediction import Compute, Prediction, predict
from posterity.prediction.passes import Weights, blocks, stack
from posterity.probability.hyper import like
from posterity.probability.likelihood import Likelihood, check_likelihood
from posterity.probability.priors import Carried, Normal
from posterity.random import generator_for
from posterity.types import Inputs, Params, PosterityError, Predictor

__all__ = ["Posterior", "WeightPosterior", "own_means"]


class Posterior:
    """A distribution over functions.

    Attributes:
        module: The user's plain network, in eval mode, not to be changed.
        likelihood: How targets arise from its outputs.
        inputs: Shape and type of the inputs it was fitted on, where known.
        seed: Where draws start when no generator is given.
        history: The figures of each epoch of the fit it came from; not stored in files.
        ways: What prediction has found and kept: the fastest way through this network, and its draws, stacked.
    """

    kind: ClassVar[str]
    parts: Sequence[Posterior] = ()
    """The posteriors that this one is made of, where it is made of any."""

    def __init__(
        self, module: nn.Module, likelihood: Likelihood, *, inputs: InputSpec | None = None, seed: int = 0
    ) -> None:
        check_likelihood(likelihood)
        self.module = plain_copy(module)
        self.likelihood = likelihood
        self.inputs = inputs
        self.seed = seed
        self.history: list[dict[str, float]] = []
        self.ways: dict[Any, Any] = {}

    @property
    def distinct(self) -> int | None:
        """How many different draws there are, where they are finite."""
        return None

    @property
    def most_draws(self) -> int | None:
        """How many draws can be asked for, where they are limited."""
        return None

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.module.parameters()).device

    def draws(self, n: int, generator: torch.Generator | None = None) -> Iterator[Predictor]:
        """n functions, or all there are if they are fewer."""
        raise NotImplementedError

    def drawn_outputs(
        self, inputs: Inputs, n: int, generator: torch.Generator | None = None, block: int | None = None
    ) -> Iterator[Tensor]:
        """What n draws make of the inputs, [some draws, batch, ...] at a time; ``block`` inputs go through at once."""
        size = block or num_examples(inputs)
        for draw in self.draws(n, generator):
            yield torch.cat([draw(part) for part in blocks(inputs, size)])[None]

    def samples(self, n: int, generator: torch.Generator | None = None) -> Iterator[Weights] | None:
        """Parameters and buffers of n draws, or None where a draw is not a set of weights."""
        return None

    def independent_moments(self) -> tuple[Params, Params]:
        """Mean and variance of every parameter, where parameters are independent Gaussians."""
        raise PosterityError(f"single-pass prediction needs independent Gaussian weights, got {type(self).__name__}")

    def as_prior(self, base: Normal = Normal()) -> Carried:  # noqa: B008 (frozen)
        """Itself as a prior of the weights, where it is a distribution over weights."""
        raise PosterityError(f"{type(self).__name__} is no distribution over weights, so it cannot become a prior")

    def stacked(self, n: int, generator: torch.Generator | None = None) -> Weights | None:
        """``samples`` as one set of tensors, with a draw dimension in front."""
        samples = self.samples(n, generator)
        return None if samples is None else stack(list(samples))

    def predict(
        self,
        inputs: Inputs,
        draws: int | Literal["auto", "moments"] = 32,
        *,
        generator: torch.Generator | None = None,
        keep_samples: bool = False,
        tolerance: float = 0.01,
        compute: Compute | None = None,
    ) -> Prediction:
        """Average the predictions of ``draws`` networks: see ``posterity.predict``."""
        return predict(
            self,
            inputs,
            draws,
            generator=generator,
            keep_samples=keep_samples,
            tolerance=tolerance,
            compute=compute,
        )

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """A copy on another device or in another precision."""
        if isinstance(device, torch.dtype):  # as torch's own modules take it
            raise PosterityError(f"a posterior's precision goes by name: to(dtype={device})")
        moved = copy.copy(self)
        moved.module = duplicate(self.module).to(device=device, dtype=dtype)
        for name, value in vars(self).items():
            setattr(moved, name, _moved(value, device, dtype) if name != "module" else moved.module)
        moved.ways = {}  # other numbers, and other times
        return moved

    def state(self) -> dict[str, Any]:
        """What a file must hold besides the network's code; ``rebuild`` takes it back."""
        raise NotImplementedError

    @classmethod
    def rebuild(cls, module: nn.Module, likelihood: Likelihood, state: dict[str, Any]) -> Posterior:
        """The posterior that ``state`` was taken from."""
        raise NotImplementedError

    def __repr__(self) -> str:
        size = sum(p.numel() for p in self.module.parameters())
        return f"{type(self).__name__}({type(self.module).__name__}, {size:,} parameters, {self.likelihood})"

    def _repr_html_(self) -> str:
        return f"<code>{html.escape(repr(self))}</code>"

    def _generator(self, generator: torch.Generator | None) -> torch.Generator:
        return generator if generator is not None else generator_for(self.seed, self.device)


class WeightPosterior(Posterior):
    """A distribution over the weights of one network: what pruning and continual learning ask for.

    Networks with BatchNorm need buffers that fit each draw, so their draws are a fixed bank: the seed's first draws,
    each with its own refreshed buffers (``posterity.posteriors.batchnorm``). A seed's draws on a CPU differ from those
    on a GPU, and in double precision from those in single, so a bank serves only where it was made.

    Attributes:
        names: The parameters in the network's order, in which means, variances and samples have them.
        bank: Buffers of the bank's draws by name, [draws, ...]; empty without BatchNorm.
        banked_in: The kind of device and the precision in which the bank was made; None where that is not known.
        pruned: Whether the method has decided which weights go, so that ``compress`` takes its zeros as they are.
    """

    needs_bank: ClassVar[bool] = True
    """Whether draws of a network with BatchNorm need a bank of buffers; points have buffers of their own."""

    def __init__(
        self,
        module: nn.Module,
        likelihood: Likelihood,
        *,
        inputs: InputSpec | None = None,
        seed: int = 0,
        bank: Params | None = None,
    ) -> None:
        super().__init__(module, likelihood, inputs=inputs, seed=seed)
        self.names = tuple(name for name, _ in self.module.named_parameters())
        self.bank: Params = bank or {}
        self.banked_in: str | None = None
        self.pruned = False

    @property
    def most_draws(self) -> int | None:
        """The size of the bank, where there is one."""
        return len(next(iter(self.bank.values()))) if self.bank else None

    @property
    def numbers(self) -> str:
        """The kind of device and the precision that draws are made in, such as ``cpu float32``."""
        return f"{self.device.type} {precision_of(self.module)}"

    def sample(self, generator: torch.Generator | None = None) -> Params:
        """One set of weights: every parameter of the module, by name."""
        raise NotImplementedError

    def mean(self) -> Params:
        """The mean of every parameter."""
        raise NotImplementedError

    def variance(self) -> Params:
        """The marginal variance of every parameter; zero for those that are deterministic."""
        raise NotImplementedError

    def log_prob(self, params: Params) -> Tensor:
        """Log density of one set of weights."""
        raise PosterityError(f"{type(self).__name__} has no density")

    def as_prior(self, base: Normal = Normal()) -> Carried:  # noqa: B008 (frozen)
        """Independent Normals with these means and variances; deterministic parameters take ``base``."""
        means, variances = self.mean(), self.variance()
        if not any(bool((v > 0).any()) for v in variances.values()):
            raise PosterityError(f"{type(self).__name__} has no variances, so it cannot become a prior")
        prior_mean, prior_std = {}, {}
        for name, variance in variances.items():
            fallback = base.at(name)
            known = variance > 0
            prior_mean[name] = torch.where(known, means[name], like(fallback.mean, variance))
            prior_std[name] = torch.where(known, variance.sqrt(), like(fallback.std, variance))
        return Normal(prior_std, prior_mean)

    def _in_order(self, params: Params) -> Params:
        """All parameters in the network's order."""
        return {name: params[name] for name in self.names}

    def samples(self, n: int, generator: torch.Generator | None = None) -> Iterator[Weights] | None:
        """Weights and buffers of n draws."""
        if self.bank:
            return self._banked(n, generator)
        generator = self._generator(generator)
        return ((self.sample(generator), {}) for _ in range(n))

    def draws(self, n: int, generator: torch.Generator | None = None) -> Iterator[Predictor]:
        """n networks, as functions."""
        for params, buffers in self.samples(n, generator) or ():
            yield Draw(self.module, params, buffers)

    def _banked(self, n: int, generator: torch.Generator | None) -> Iterator[Weights]:
        if generator is not None:
            raise PosterityError("a network with BatchNorm has a fixed bank of draws: leave the generator out")
        if self.most_draws is not None and n > self.most_draws:
            raise PosterityError(
                f"{n} draws were asked for, but the bank has {self.most_draws}: posterior.refresh(loader, draws={n})"
            )
        if self.banked_in not in (None, self.numbers):
            raise PosterityError(
                f"the BatchNorm statistics are those of draws on {self.banked_in}, and the seed gives other draws on "
                f"{self.numbers}: posterior.refresh(loader, draws={n})"
            )
        generator = self._generator(None)
        return ((self.sample(generator), {name: b[i] for name, b in self.bank.items()}) for i in range(n))

    def refresh(self, loader: Iterable[Any], draws: int = 32) -> Self:
        """The same posterior with a bank of ``draws`` draws, their BatchNorm buffers gathered on training batches."""
        from posterity.posteriors.batchnorm import with_bank  # it needs this class

        return with_bank(self, as_batches(loader), draws)


def own_means(module: nn.Module, means: Params) -> Params:
    """The means of a network's parameters, in the network's order; refused where one is missing."""
    names = [name for name, _ in module.named_parameters()]
    missing = [name for name in names if name not in means]
    if missing:
        raise PosterityError(f"the posterior has no mean for parameter {missing[0]!r}")
    return {name: means[name].detach() for name in names}


def _moved(value: Any, device: torch.device | str | None, dtype: torch.dtype | None) -> Any:
    """Tensors, and tensors inside containers and families, on another device or in another precision."""
    if isinstance(value, Tensor):
        return value.to(device=device, dtype=dtype if value.is_floating_point() else None)
    if isinstance(value, dict):
        return {key: _moved(item, device, dtype) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_moved(item, device, dtype) for item in value)
    if isinstance(value, Posterior):
        return value.to(device, dtype)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _moved(getattr(value, f.name), device, dtype) for f in fields(value)})
    return value
