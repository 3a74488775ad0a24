"""Watches a fit and says in one plain line what looks wrong and what to do about it.

A loss or a weight that is no number stops the fit; everything else is a warning: what the method itself knows of
(``symptoms``: collapsed stds, a KL that drowns the likelihood, too few snapshots), and draws that do not differ.
"""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posterity.methods.base import Method
from posterity.optim.sampled import SampledOptimizer
from posterity.posteriors import Posterior
from posterity.probability.likelihoods import Categorical, Likelihood
from posterity.run import Run
from posterity.types import Inputs, PosterityError, PosterityWarning

__all__ = ["check_diversity", "check_logits", "check_loss", "check_method", "check_weights"]


def check_loss(loss: float, run: Run, checkpoint: Path | None) -> None:
    """Stop when the loss is no number, with the step, the parameter at fault and the last good checkpoint."""
    if math.isfinite(loss):
        return
    bad = [name for name, p in run.module.named_parameters() if _broken(p) or (p.grad is not None and _broken(p.grad))]
    where = f"parameter {bad[0]!r} is not finite" if bad else "all parameters are still finite"
    raise PosterityError(f"the loss became {loss} at step {run.step} ({where}; {_kept(checkpoint)}): {_advice(run)}")


def check_weights(run: Run, checkpoint: Path | None) -> None:
    """Stop when the latest update has made a weight no number, which the loss would show one step later."""
    for name, p in run.module.named_parameters():
        if p.requires_grad and _broken(p):
            raise PosterityError(
                f"parameter {name!r} is not finite after step {run.step} ({_kept(checkpoint)}): {_advice(run)}"
            )


def _kept(checkpoint: Path | None) -> str:
    there = checkpoint is not None and checkpoint.exists()
    return f"the last good checkpoint is {checkpoint}" if there else "no checkpoint was kept"


def _advice(run: Run) -> str:
    # Optimizers that sample have no gradient to clip.
    return "try a lower lr" if isinstance(run.optimizer, SampledOptimizer) else "try a lower lr or clip=1.0"


def check_method(method: Method, run: Run) -> None:
    """Pass on what the method itself finds suspicious."""
    for symptom in method.symptoms(run):
        warnings.warn(symptom, PosterityWarning, stacklevel=2)


def check_logits(likelihood: Likelihood, outputs: Tensor) -> None:
    """Warn of a network that ends in a softmax, which the likelihood would take a second time."""
    if isinstance(likelihood, Categorical) and outputs.shape[-1] > 1 and bool((outputs >= 0).all()):
        sums = outputs.double().sum(-1)
        if torch.allclose(sums, torch.ones_like(sums), rtol=0, atol=outputs.shape[-1] * torch.finfo(outputs.dtype).eps):
            text = "the network's outputs sum to 1, as after a softmax, but logits are wanted: leave out its softmax"
            warnings.warn(text, PosterityWarning, stacklevel=2)


def check_diversity(posterior: Posterior, inputs: Inputs) -> None:
    """Warn when a posterior of many networks predicts as one."""
    if posterior.distinct == 1:
        return
    prediction: Any = posterior.predict(inputs, draws=4)
    if posterior.likelihood.classifies:
        spread = prediction.std
    else:  # a share of the whole variance, which does not depend on the units of the targets
        spread = prediction.epistemic / prediction.variance
    if prediction.draws > 1 and float(spread.max()) < 1e-6:
        text = "all draws predict the same: the posterior has collapsed to a point; raise its std, lr or prior scale"
        warnings.warn(text, PosterityWarning, stacklevel=2)


def _broken(tensor: Tensor) -> bool:
    return not bool(torch.isfinite(tensor).all())
