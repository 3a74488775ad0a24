"""A posterior from a Lightning Trainer: your LightningModule, your Trainer, and one callback.

    bayesian = Bayesian(SWAG(rank=20), network="net", likelihood=Categorical())
    trainer = Trainer(max_epochs=20, callbacks=[bayesian])
    trainer.fit(model, loader)
    bayesian.posterior.predict(x)

``network`` names the attribute of the LightningModule that holds the plain network, the one whose outputs the
likelihood reads. Devices, precision, clipping, logging, your optimizer and its schedule stay as they are. The callback
adds what the method needs:

    prepare      the network is replaced by the method's copy of it (with variational layers, for MeanField)
    optimizer    a method that brings its own (IVON, VOGN, the samplers) has it take the place of yours, with the
                 method's schedule or a cosine; with any other method yours stays, and its weight decay is the prior
                 (δ/N for a precision δ)
    penalty      KL/N, or -log p(w)/N where weight decay cannot hold it, is added to the loss of ``training_step``
    collector    snapshots and moments after each step

Your loss must be a mean over examples, as ``F.cross_entropy`` is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from posterity.calling import InputSpec, as_batch, map_batch
from posterity.methods import Method
from posterity.optim.schedules import ByStep, schedule
from posterity.posteriors import Posterior, WeightPosterior, with_bank
from posterity.probability.likelihoods import Likelihood
from posterity.random import RandomStreams
from posterity.run import Run
from posterity.training.doctor import check_method
from posterity.types import Batch, Plan, PosterityError

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise ImportError("posterity.integrations.lightning needs lightning: pip install lightning") from error

__all__ = ["Bayesian"]


@dataclass(frozen=True)
class _UsersOwn:
    """Stands for the plain optimizer in a method's plan: whatever the user's ``configure_optimizers`` returns."""

    configured: Any

    def build(self, params: Any, lr: float, weight_decay: float = 0.0) -> Any:
        """The user's, as it is."""
        return self.configured


class Bayesian(Callback):
    """Gets a posterior out of the training of a LightningModule.

    Args:
        method: ``SWAG(...)``, ``IVON(...)``, ``MeanField(...)`` or any other.
        network: The attribute of the LightningModule that holds the plain network.
        likelihood: How targets arise from its outputs; the noise of a ``Gaussian`` must be given.
        lr: Learning rate of an optimizer that the method brings; None takes the method's own.
        seed: All randomness of the method.

    Attributes:
        posterior: The posterior, once training has ended.
    """

    posterior: Posterior

    def __init__(
        self, method: Method, network: str, likelihood: Likelihood, *, lr: float | None = None, seed: int = 0
    ) -> None:
        if not isinstance(method, Method) or not isinstance(likelihood, Likelihood):
            raise PosterityError(f"expected a method and a likelihood, got {method!r} and {likelihood!r}")
        if likelihood.trainable() is not None:
            raise PosterityError(f"{likelihood!r} learns its noise, which a Trainer does not: give the std")
        self.method, self.network, self.likelihood, self.lr, self.seed = method, network, likelihood, lr, seed
        self.run: Run | None = None
        self._pace: ByStep
        self._brings_optimizer = False
        self._restored: dict[str, Any] = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Put the method's copy in the place of the network, before the optimizer is made."""
        if stage != "fit" or self.run is not None:
            return
        plain = getattr(pl_module, self.network, None)
        if not isinstance(plain, nn.Module):
            raise PosterityError(f"{type(pl_module).__name__} has no network called {self.network!r}")
        if not pl_module.automatic_optimization:
            raise PosterityError("a module with manual optimization has a loop of its own: use posterity.optim there")
        setattr(pl_module, self.network, self.method.prepare(plain))
        users, step = pl_module.configure_optimizers, pl_module.training_step
        pl_module.configure_optimizers = lambda: self._configure(trainer, pl_module, users())  # type: ignore[method-assign]
        pl_module.training_step = lambda *args, **kwargs: self._with_penalty(step(*args, **kwargs))  # type: ignore[method-assign]

    def _configure(self, trainer: Trainer, pl_module: LightningModule, users: Any) -> Any:
        """The run, and the optimizer for Lightning: the method's own, or what the user configured."""
        module: nn.Module = getattr(pl_module, self.network)
        plan = _plan(trainer, _UsersOwn(users), self.lr)
        streams = RandomStreams.from_seed(self.seed, 0, pl_module.device)  # one noise for all ranks
        optimizer: Any = self.method.optimizer(module, plan, streams)
        self._brings_optimizer = optimizer is not users
        if self._brings_optimizer and trainer.accumulate_grad_batches != 1:
            raise PosterityError(
                f"{type(self.method).__name__} takes its statistics from every backward pass: "
                "leave accumulate_grad_batches at 1"
            )
        self._pace = self.method.schedule(plan).by_step(schedule("cosine"), plan)
        self.run = Run(module, optimizer, self.method.collector(module, plan), plan, streams)
        if self._restored:
            self.run.step = self._restored["step"]
            self.run.collector.load_state_dict(self._restored["collector"])
            self.run.streams.load_state_dict(self._restored["streams"])
        return optimizer

    @property
    def _started(self) -> Run:
        if self.run is None:
            raise PosterityError("training has not begun: pass the callback to a Trainer and call its fit")
        return self.run

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Set this step's temperature, and the learning rate of an optimizer that the method brought."""
        run = self._started
        factor, run.temperature = (pace(run.step) for pace in self._pace)
        for group in run.optimizer.param_groups if self._brings_optimizer else ():
            group.setdefault("initial_lr", group["lr"])
            group["lr"] = group["initial_lr"] * factor
            group["temperature"] = run.temperature

    def _with_penalty(self, output: Any) -> Any:
        """What ``training_step`` returned, its loss with the penalty of the method."""
        run = self._started
        penalty = self.method.penalty(run.module, run.temperature)
        if output is None or not isinstance(penalty, Tensor):
            return output
        penalty = penalty / run.plan.num_data
        return {**output, "loss": output["loss"] + penalty} if isinstance(output, Mapping) else output + penalty

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Observe, after those batches at which the optimizer stepped."""
        run = self._started
        if trainer.global_step > run.step:
            run.step = trainer.global_step
            run.collector.observe(run)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read the posterior off, while everything is still on its device."""
        run = self._started

        def batches() -> Iterator[Batch]:
            for item in trainer.train_dataloader:  # type: ignore[union-attr]
                yield map_batch(as_batch(item), lambda t: t.to(pl_module.device))

        check_method(self.method, run)
        posterior = self.method.posterior(run, self.likelihood, batches())
        posterior.inputs, posterior.seed = InputSpec.of(next(batches()).inputs), self.seed
        self.posterior = with_bank(posterior, batches()) if isinstance(posterior, WeightPosterior) else posterior

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs beside the module and the optimizer."""
        run = self.run
        if run is None:
            return {}
        return {"step": run.step, "collector": run.collector.state_dict(), "streams": run.streams.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state until the run is made."""
        self._restored = state_dict


def _plan(trainer: Trainer, algorithm: _UsersOwn, lr: float | None) -> Plan:
    """What is known of the training before it starts."""
    trainer.fit_loop.setup_data()  # Lightning would do so after this
    steps = trainer.estimated_stepping_batches
    if steps == float("inf"):
        raise PosterityError("the length of the run must be known: give the Trainer max_epochs or max_steps")
    loader: Any = trainer.train_dataloader
    try:
        num_data = len(loader.dataset)
    except (AttributeError, TypeError) as error:
        raise PosterityError(
            f"the number of examples cannot be read off this {type(loader).__name__}: give the Trainer one DataLoader "
            "of a data set with a length"
        ) from error
    per_epoch = -(-int(trainer.num_training_batches) // trainer.accumulate_grad_batches)
    return Plan(num_data, int(steps), per_epoch, loader.batch_size, algorithm, lr)
