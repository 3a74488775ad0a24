"""How the past enters the learning of the next task.

    Carry        the posterior of one task is the prior of the next, p(w | D₁ … Dₜ) ∝ p(Dₜ | w) p(w | D₁ … Dₜ₋₁)
    FineTuning   not at all: the next task starts from the last one's weights, and forgets
    Joint        all data so far, from the beginning: the ceiling
    Replay       some examples of every earlier task among the new ones
    EWC          a point, held where the Fisher information of earlier tasks was large (Kirkpatrick et al. 1612.00796)

A strategy is frozen; what it remembers is in the ``Past`` that ``learn`` keeps for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from posterity.continual.memory import Memory, joined
from posterity.continual.tasks import Pair
from posterity.methods import MAP, Laplace, Method
from posterity.posteriors import Empirical, Posterior, WeightPosterior
from posterity.probability.likelihoods import Likelihood
from posterity.probability.priors import Normal, check_temperature, from_posterior
from posterity.types import Params, PosterityError, check_fraction, check_positive

__all__ = ["EWC", "Carry", "FineTuning", "Joint", "Past", "Replay", "Strategy"]


@dataclass
class Past:
    """What is known when a task begins.

    Attributes:
        prior: The prior of the task.
        posterior: That of the tasks before; None at the first.
        stds: The posterior's standard deviations, zero where a weight starts afresh; None where all do.
        memory: The examples kept of each task before.
        sizes: How many examples each task before had.
        heads: For each task before the classes of its head, or None for a single head.
    """

    prior: Any
    posterior: WeightPosterior | None = None
    stds: Params | None = None
    memory: list[Pair] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    heads: list[tuple[int, ...] | None] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """What the strategies share; as it stands, fine-tuning.

    Attributes:
        method: How each task is learned.
        memory: What is kept of each task.
        rehearse: The share of remembered examples among those that a task is learned from, each repeated as needed.
    """

    afresh: ClassVar[bool] = False
    """Whether a task starts from the first weights, not from the last task's."""

    method: Method = MAP()
    memory: Memory | None = None
    rehearse: float = 0.0

    def __post_init__(self) -> None:
        check_fraction(rehearse=self.rehearse)
        if not isinstance(self.method, Method):
            raise PosterityError(f"the method must be one such as posterity.VOGN(), got {self.method!r}")
        if not isinstance(self.method.prior, Normal):
            raise PosterityError(f"learning that goes on starts from a Normal prior, got {self.method.prior!r}")
        if self.rehearse and self.memory is None:
            raise PosterityError("rehearsing needs a memory: give memory=Memory(200)")

    @property
    def base(self) -> Normal:
        """The prior before the first task, and of whatever has no variance."""
        return self.method.prior  # type: ignore[return-value]

    @property
    def refines(self) -> bool:
        """Whether remembered examples are learned only before predictions, and not carried on."""
        return False

    def cut(self, train: Pair, seed: int) -> tuple[Pair | None, Pair]:
        """What to remember of a task, and what to learn it from."""
        return (None if self.memory is None else self.memory.cut(train, seed)[0]), train

    def lessons(self, train: Pair, memory: Sequence[Pair]) -> Pair:
        """A task's examples with those that are rehearsed."""
        if not memory or not self.rehearse:
            return train
        remembered = sum(len(targets) for _, targets in memory)
        wanted = self.rehearse / (1 - self.rehearse) * len(train[1])
        return joined([train, *max(1, round(wanted / remembered)) * list(memory)])

    def method_for(self, past: Past, likelihood: Likelihood) -> Method:
        """The method of the next task."""
        return self.method.carrying(past.prior, past.stds)

    def prior_after(self, posterior: WeightPosterior, prior: Any) -> Any:
        """The prior of the next task, from this one's posterior and prior."""
        return self.base

    def predictive(self, posterior: WeightPosterior) -> Posterior:
        """What predictions are made with."""
        return posterior


@dataclass(frozen=True, kw_only=True)
class Carry(Strategy):
    """The posterior of one task as the prior of the next.

    With a memory and nothing rehearsed, the examples are kept out of their task and learned only before predictions,
    from the posterior that is carried on, as in variational continual learning (Nguyen et al. 1710.10628).

    Attributes:
        temperature: Of the carried prior: above 1 it forgets.
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_carried(self.method)
        check_temperature(self.temperature)

    @property
    def refines(self) -> bool:
        """With a memory that is not rehearsed."""
        return self.memory is not None and not self.rehearse

    def cut(self, train: Pair, seed: int) -> tuple[Pair | None, Pair]:
        """Examples that wait for predictions are not learned from before."""
        if not self.refines or self.memory is None:
            return super().cut(train, seed)
        kept, others = self.memory.cut(train, seed)
        if not len(others[1]):
            raise PosterityError(
                f"a memory of {self.memory.size} leaves none of {len(train[1])} examples to learn from"
            )
        return kept, others

    def prior_after(self, posterior: WeightPosterior, prior: Any) -> Any:
        """The posterior."""
        return from_posterior(posterior, self.base, self.temperature)


@dataclass(frozen=True, kw_only=True)
class FineTuning(Strategy):
    """Each task from the weights of the last: what forgetting is measured against."""


@dataclass(frozen=True, kw_only=True)
class Replay(Strategy):
    """Fine-tuning with remembered examples among the new ones."""

    memory: Memory | None = Memory(200)
    rehearse: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Joint(Strategy):
    """All data so far, from the first weights: what a network could know if it never had to forget."""

    afresh: ClassVar[bool] = True

    memory: Memory | None = Memory(None)

    def lessons(self, train: Pair, memory: Sequence[Pair]) -> Pair:
        """Everything."""
        return joined([train, *memory])


@dataclass(frozen=True, kw_only=True)
class EWC(Strategy):
    """Elastic weight consolidation, with one quadratic penalty about the newest weights.

    The Laplace posterior of a task (the Fisher information's diagonal) is the prior of the next, its new part counted
    ``strength`` times: Λₜ = Λₜ₋₁ + strength·N Fₜ about w*ₜ. The first paper keeps a penalty about the weights of every
    task; Huszár (1712.03847) showed that this counts earlier tasks twice. Predictions are the point's.

    Attributes:
        strength: λ.
    """

    method: Method = Laplace(structure="diagonal", curvature="fisher", linearised=False)
    strength: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_carried(self.method)
        check_positive(strength=self.strength)

    def prior_after(self, posterior: WeightPosterior, prior: Any) -> Any:
        """The posterior, with the new task's precision counted ``strength`` times.

        Its mean stays at the newest weights. The power of the densities would move the mean of weights that no data
        hold away from the prior's, ``strength`` times as far.
        """
        own = from_posterior(posterior, self.base)
        return replace(own.tempered(prior, 1 / self.strength), mean=own.mean)

    def predictive(self, posterior: WeightPosterior) -> Posterior:
        """The point."""
        point = Empirical(posterior.module, posterior.likelihood, [posterior.mean()], inputs=posterior.inputs)
        point.history = posterior.history
        return point


def _check_carried(method: Method) -> None:
    """Refuse, before the first task, a method that could not learn the second."""
    if method.uncarried:
        raise PosterityError(
            f"{type(method).__name__} cannot learn each task from the posterior of the last: {method.uncarried}; take "
            "one that can, such as VOGN or MeanField, or fine-tuning, which goes on from the weights alone"
        )
