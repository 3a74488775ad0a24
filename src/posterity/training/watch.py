"""The figures of an epoch, and when to stop: mean loss and accuracy, validation loss, best so far."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from itertools import takewhile
from typing import Any

import torch

from posterity.calling import call
from posterity.devices import number
from posterity.networks import train_mode
from posterity.probability.likelihoods import Likelihood
from posterity.run import Run, Sums
from posterity.training.distributed import Ranks
from posterity.training.recording import Found
from posterity.training.stream import Stream
from posterity.types import Plan

__all__ = ["Watch", "settled"]


class Watch:
    """Looks at every step; sums of the epoch and the best state so far are kept in the run, and so in its checkpoint.

    Args:
        likelihood: What the loss is, and whether there is an accuracy.
        held: Validation data, if any.
        patience: Epochs without a better validation loss before the run is stopped; None never stops it.
        start: The step from which on epochs are judged (``settled``).
    """

    def __init__(self, likelihood: Likelihood, held: Stream | None, patience: int | None, start: int) -> None:
        self.likelihood, self.held, self.patience, self.start = likelihood, held, patience, start

    def add(self, run: Run, found: Found, size: float) -> None:
        """Take in one step of so many examples."""
        self.latest, right, judged = found
        run.sums.loss += number(self.latest) * size
        run.sums.examples += size
        run.sums.right += right
        run.sums.judged += judged

    @property
    def last(self) -> float:
        """The latest step's loss; on a GPU this waits for it."""
        return float(self.latest)

    def figures(self, run: Run, ranks: Ranks) -> dict[str, float]:
        """The epoch's figures; starts the next epoch's sums."""
        sums = torch.tensor([float(total) for total in vars(run.sums).values()], dtype=torch.float64)
        run.sums = Sums()
        sums = sums.to(self.latest.device)
        ranks.average_([sums])
        loss, examples, right, judged = sums.tolist()
        figures = {"loss": loss / examples / run.members, "lr": float(run.optimizer.param_groups[0]["lr"])}
        if judged:
            figures["accuracy"] = right / judged
        if self.held is not None:
            figures["validation_loss"] = held_out_loss(run, self.likelihood, self.held)
            self._judge(figures["validation_loss"], run)
        return figures

    def _judge(self, loss: float, run: Run) -> None:
        if self.patience is None or run.step < self.start:
            return
        if loss < run.best.get("loss", math.inf):
            state = {key: value for key, value in run.state_dict().items() if key not in ("step", "history", "best")}
            run.best = {"loss": loss, "waited": 0, "state": copy.deepcopy(state)}
        else:
            run.best = {**run.best, "waited": run.best.get("waited", 0) + 1}

    def stopped(self, run: Run) -> bool:
        """Whether the run has waited for a better validation loss for long enough."""
        return self.patience is not None and run.best.get("waited", 0) >= self.patience

    def restore_best(self, run: Run) -> None:
        """Put back all that was best together: weights, their spread where the optimizer has it, learned noise."""
        if "state" in run.best:
            run.load_state_dict({**run.best["state"], "step": run.step, "history": run.history})


def settled(temperature: Callable[[int], float], plan: Plan) -> int:
    """The first end of an epoch from which on the temperature, at the end of every epoch, is that of the run's last.

    Early stopping goes back no further: before it, the KL or the noise had another weight, and what the method would
    give is another posterior, too sure of itself while they rise. Where the temperature comes in cycles, this lies in
    the last one; where it takes the same course in every epoch (``blundell``), at the end of the first.
    """
    ends = [*range(plan.steps_per_epoch, plan.steps, plan.steps_per_epoch), plan.steps]
    last = temperature(plan.steps - 1)
    return min(takewhile(lambda end: temperature(end - 1) == last, reversed(ends)))


@torch.no_grad()
def held_out_loss(run: Run, likelihood: Likelihood, held: Stream) -> float:
    """Mean negative log-likelihood on validation data at the current weights, in eval mode; weighted as in training."""
    known: Any = run.noise or likelihood
    run.module.eval()
    try:
        sums = [
            (batch.weighted(known.log_prob(call(run.module, batch.inputs), batch.targets)).sum(), len(batch.targets))
            for batch in held.once()
        ]
    finally:
        train_mode(run.module)
    return -sum(float(s) for s, _ in sums) / sum(n for _, n in sums)
