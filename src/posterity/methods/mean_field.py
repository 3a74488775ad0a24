"""Mean-field variational inference, Bayes by Backprop (Blundell et al. 2015, 1505.05424).

Every weight is an independent Gaussian, w ~ N(mean, std²), trained by gradient ascent on the evidence lower bound

    ELBO = N·mean_i E_q[log p(y_i | f_w(x_i))] − temperature·KL(q‖p)

with the KL a sum over weights, in the direction posterior to prior, in closed form where the prior has one. The loop
minimises −ELBO/N. How weight noise enters a pass is the estimator's matter (``posterity.layers.estimators``); what is
learned is the same. The trained (mean, std) go back onto the names of the plain network, so that saving, pruning and
deployment never meet a Bayesian layer.

Beside the diagonal, ``family`` offers a full covariance (last layers, small modules), low rank plus diagonal, and
radial noise. Parameters that stay deterministic (biases, normalisation) are point estimates without a prior.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Self, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from posterity.calling import Draw
from posterity.layers.blocks import Diagonal, Full, LowRank, Radial
from posterity.layers.convert import Family, Scheme, convert, scheme
from posterity.layers.select import Which, select
from posterity.layers.start import Earlier, Moped
from posterity.layers.variational import Variational, kl
from posterity.methods.base import Method
from posterity.methods.tempering import KLSchedule, kl_schedule
from posterity.networks import copied
from posterity.optim.schedules import Pace
from posterity.posteriors import DiagonalGaussian, FullGaussian, LowRankGaussian, WeightPosterior
from posterity.posteriors.gaussian import GaussianPosterior
from posterity.posteriors.implicit import Implicit
from posterity.probability.correlated import Correlated
from posterity.probability.likelihoods import Likelihood
from posterity.probability.priors import Prior
from posterity.random import RandomStreams
from posterity.run import Run
from posterity.types import Batch, Params, Plan, PosterityError, check_positive, check_whole

__all__ = ["MeanField", "evidence_bound"]


@dataclass(frozen=True, kw_only=True, repr=False)
class MeanField(Method):
    """Independent Gaussian weights, trained on the ELBO.

    Attributes:
        prior: p(w).
        estimator: ``"local"``, ``"reparameterised"``, ``"flipout"``; ``"auto"`` is local for Linear, flipout
            for convolutions and reparameterised for Linear on tokens, whose draws then have the noise they were
            trained with.
        family: ``"diagonal"``; ``"full"``, ``"low-rank"`` or ``"radial"`` with drawn weights.
        init_std: The std that weights start with, ``Moped(...)`` to start from a trained network, or ``Earlier(...)``
            from an earlier posterior.
        mc_samples: Draws averaged at every step.
        kl_schedule: ``"constant"``, ``"linear"``, ``"cyclical"``, ``"blundell"``, or a ``KLSchedule``.
        temperature: What the KL is multiplied by; 1 is the Bayes posterior, below it a cold one.
        free_bits: Nats of KL a weight that each parameter may have for nothing.
        which: Modules by name pattern or type, or ``"last"``; all if not given.
        bayesian_bias: Biases, too.
        bayesian_norm: Normalisation layers, too.
    """

    estimator: str = "auto"
    family: str | Family = "diagonal"
    init_std: float | Moped | Earlier = 0.01
    mc_samples: int = 1
    kl_schedule: str | KLSchedule = "constant"
    temperature: float = 1.0
    free_bits: float = 0.0
    which: Which = None
    bayesian_bias: bool = False
    bayesian_norm: bool = False

    def __post_init__(self) -> None:
        check_whole(mc_samples=self.mc_samples)
        check_positive(mc_samples=self.mc_samples, temperature=self.temperature)
        kl_schedule(self.kl_schedule)
        if not self.free_bits >= 0:
            raise PosterityError(f"free_bits must not be negative, got {self.free_bits!r}")
        if not isinstance(self.init_std, Moped | Earlier):
            check_positive(init_std=self.init_std)

    def carrying(self, prior: Prior, std: Params | None = None) -> Self:
        """With biases Bayesian, since a parameter without a variance would forget, and from the stds given."""
        start = self.init_std if std is None else Earlier(std, self.init_std)
        return replace(self, prior=prior, init_std=start, bayesian_bias=True)

    def scheme(self) -> Scheme:
        """How the weights become random."""
        return scheme(self.estimator, self.family)

    def prepare(self, module: nn.Module) -> Variational:
        """A converted copy."""
        net = copied(module)
        found = select(net, self.which, self.bayesian_bias, self.bayesian_norm)
        return convert(net, found, self.scheme(), self.prior, self.init_std)

    def schedule(self, plan: Plan) -> Pace:
        """The KL's weight by step; the learning rate is left to ``Training``."""
        warm_up = kl_schedule(self.kl_schedule)
        return Pace(temperature=lambda step: self.temperature * warm_up.weight(step, plan))

    def optimizer(self, module: nn.Module, plan: Plan, streams: RandomStreams) -> Optimizer:
        """The plain optimizer asked for; the prior is in the KL."""
        return plan.algorithm.build(module.parameters(), self.base_lr(plan))

    def penalty(self, module: nn.Module, temperature: float) -> Tensor | float:
        """temperature·KL(q‖p), with free bits where asked for; nothing to compute before a warm-up."""
        if temperature == 0:
            return 0.0
        return temperature * (self._kl_above_free_bits(module) if self.free_bits else kl(module))

    def _kl_above_free_bits(self, module: nn.Module) -> Tensor:
        """Σ over parameters of max(KL, free bits): below them the KL has no gradient."""
        parts = []
        for block in cast(Variational, module).blocks:
            if not isinstance(block, Diagonal):
                raise PosterityError("free bits are for the diagonal family")
            if isinstance(block.prior, Correlated):
                raise PosterityError("free bits are a parameter's own, and need a prior of independent weights")
            free = self.free_bits * torch.tensor(block.slots.layout.sizes).to(block.mean)
            parts.append(torch.maximum(block.kl_each(), free).sum())
        return torch.stack(parts).sum()

    def posterior(self, run: Run, likelihood: Likelihood, batches: Iterable[Batch]) -> WeightPosterior:
        """The trained distribution, over the plain network's parameters."""
        module = cast(Variational, run.module)
        plain, mean, std = module.plain(), module.mean(), module.std()
        match module.blocks[0]:
            case Full() as block:
                names = block.slots.layout.names
                return FullGaussian(plain, likelihood, mean, block.family().scale_tril.detach(), names)
            case LowRank() as block:
                q = block.trained()
                own = block.slots.layout.unflatten(q.std.detach())
                return LowRankGaussian(plain, likelihood, mean, own, q.deviations.detach())
            case Radial():
                return Implicit(plain, likelihood, module, "radial")
        return DiagonalGaussian(plain, likelihood, mean, std)

    def moments(self, run: Run) -> tuple[Params, Params]:
        """Mean and variance of every plain parameter, for wrappers such as HWA; 0 where it is deterministic."""
        module = cast(Variational, run.module)
        mean, std = module.mean(), module.std()
        return mean, {name: std[name].square() if name in std else torch.zeros_like(m) for name, m in mean.items()}

    @torch.no_grad()
    def measures(self, run: Run) -> dict[str, float]:
        """KL in nats an example, and the mean std."""
        stds = torch.cat([s.flatten() for s in cast(Variational, run.module).std().values()])
        return {"kl": float(kl(run.module)) / run.plan.num_data, "std": float(stds.mean())}

    def symptoms(self, run: Run) -> Iterator[str]:
        """Stds that have collapsed, and weights that are all noise because the KL won."""
        module = cast(Variational, run.module)
        std, mean = module.std(), module.mean()
        signal = torch.cat([(mean[name] / s.clamp_min(1e-30)).abs().flatten() for name, s in std.items()])
        if float((signal > 1e4).float().mean()) > 0.99:
            yield "the weights' std has collapsed: start from a larger init_std, or train longer"
        if float((signal > 1).float().mean()) < 1e-3:
            yield (
                "the KL drowns the likelihood, and every weight is more noise than signal: use a KL warm-up, a wider "
                "prior, fewer weights (which='last'), or more data"
            )


@torch.no_grad()
def evidence_bound(posterior: GaussianPosterior, prior: Prior, batches: Iterable[Batch], draws: int = 32) -> float:
    """The ELBO of a fitted posterior on its training data, in nats: the measure by which to choose hyper-parameters.

    E_q[Σ_i log p(y_i | w) + log p(w) − log q(w)], the mean over draws. With log p and log q taken at the same draws its
    noise vanishes as q nears the exact posterior, where every draw gives the log evidence itself.

    Args:
        posterior: A Gaussian over weights.
        prior: The prior it was fitted with; parameters that the posterior holds fixed are left out.
        batches: All training data once.
        draws: How many draws to average.
    """
    flat = prior.flat(posterior.bayesian)
    samples = list(posterior.samples(draws) or ())
    vectors = [posterior.bayesian.flatten(params) for params, _ in samples]
    total = torch.stack([flat.log_density(v).sum() - posterior.q.log_prob(v) for v in vectors]).mean()
    for batch in batches:
        for params, buffers in samples:
            outputs = Draw(posterior.module, params, buffers)(batch.inputs)
            total = total + batch.weighted(posterior.likelihood.log_prob(outputs, batch.targets)).sum() / draws
    return float(total)
