"""Judging predictive distributions of numbers: which figures, and what the plots of a regression need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from posterity.evaluation import regression
from posterity.evaluation.checks import weighted_mean
from posterity.evaluation.gather import Gathered
from posterity.prediction import Regression
from posterity.prediction.targets import real_targets

__all__ = ["RealJudge"]

_MOMENTS = ("mean", "aleatoric", "epistemic")
LEVELS = (50, 90, 95)
SHOWN = 200
"""How many examples a plot of the predictive band shows."""


class RealJudge:
    """Evaluates ``Regression`` predictions.

    Args:
        scale: Standard deviation of each target column before it was standardised; figures are in those units.
        shift: Mean of each column, for plots.
    """

    def __init__(self, scale: Tensor | None = None, shift: Tensor | None = None) -> None:
        self.scale = torch.ones(1) if scale is None else scale.double().cpu().reshape(-1)
        self.shift = torch.zeros(1) if shift is None else shift.double().cpu().reshape(-1)

    def rows(self, prediction: Regression, targets: Tensor) -> tuple[Regression, Tensor, int]:
        """One row for each example, whose numbers are judged together."""
        return prediction, targets, 1

    def light(self, prediction: Regression) -> Regression:
        """Moments and draws on the CPU."""
        columns = {name: getattr(prediction, name).cpu() for name in (*_MOMENTS, "components")}
        return replace(prediction, samples=None, **columns)

    def joined(self, parts: list[Regression]) -> Regression:
        """All examples together."""
        columns: dict[str, Any] = {name: torch.cat([getattr(p, name) for p in parts]) for name in _MOMENTS}
        columns["components"] = torch.cat([p.components for p in parts], 1)
        return replace(parts[0], error=max(p.monte_carlo_error for p in parts), **columns)

    def only(self, prediction: Regression, chosen: list[int]) -> Regression:
        """The mixture of these draws."""
        assert prediction.samples is not None
        samples = prediction.samples[chosen]
        mean = prediction.likelihood.mean(samples).mean(0)
        return replace(prediction, draws=len(chosen), mean=mean, components=samples)

    def each(self, prediction: Regression, targets: Tensor) -> Tensor:
        """Squared error and log density, in the targets' own units."""
        targets = real_targets(targets, prediction.mean)
        squared = self._columns((prediction.mean.cpu() - targets).double()).square().mean(1)
        return torch.stack([squared, self._log_density(prediction, targets)])

    def figures(self, prediction: Regression, targets: Tensor) -> Callable[[Tensor | None], dict[str, Tensor]]:
        """All figures of a regression."""
        squared, log_density = self.each(prediction, targets)
        quantiles = regression.ends(prediction, targets)
        columns = {"nll": -log_density, "crps": self._crps(prediction, targets)}
        for level in LEVELS:
            low, high = prediction.interval(level / 100)
            hits = regression.inside(quantiles, level / 100)
            columns[f"coverage_{level}"] = hits.reshape(len(hits), -1).mean(1)
            columns[f"width_{level}"] = self._columns((high - low).double()).mean(1)

        def figures(weights: Tensor | None) -> dict[str, Tensor]:
            means = {name: weighted_mean(values, weights) for name, values in columns.items()}
            return {"rmse": weighted_mean(squared, weights).sqrt(), **means}

        return figures

    def shifted(self, prediction: Regression, targets: Tensor) -> Callable[[Tensor | None], dict[str, Tensor]]:
        """RMSE and NLL."""
        squared, log_density = self.each(prediction, targets)
        return lambda weights: {
            "rmse": weighted_mean(squared, weights).sqrt(),
            "nll": weighted_mean(-log_density, weights),
        }

    def details(self, gathered: Gathered) -> dict[str, Any]:
        """The PIT histogram, and the band along the input (if it is one number) or along the predicted mean."""
        prediction, targets = gathered.prediction, gathered.targets
        quantiles = regression.pit(prediction, targets).reshape(-1)
        counts = torch.histc(quantiles, 20, 0, 1)
        return {
            "pit": (counts / counts.sum()).tolist(),
            "band": self._band(prediction, real_targets(targets, prediction.mean), gathered.along),
        }

    def _band(self, prediction: Regression, targets: Tensor, along: Tensor | None) -> dict[str, Any]:
        """Mean, both stds, the 95% interval and the target of some examples in order (the first target column)."""
        mean = prediction.mean.reshape(len(prediction.mean), -1)[:, 0]
        order = (mean if along is None else along).argsort()
        order = order[torch.linspace(0, len(order) - 1, min(SHOWN, len(order))).round().long()]
        low, high = prediction.interval(0.95)
        places = {"mean": prediction.mean, "low": low, "high": high, "target": targets}
        spreads = {"aleatoric": prediction.aleatoric.sqrt(), "epistemic": prediction.epistemic.sqrt()}
        band = {n: (self._columns(v.double()) + self.shift)[order, 0].tolist() for n, v in places.items()}
        band |= {n: self._columns(v.double())[order, 0].tolist() for n, v in spreads.items()}
        return band | ({} if along is None else {"input": along[order].double().tolist()})

    def _columns(self, values: Tensor) -> Tensor:
        """[n, columns] in the targets' own units."""
        return values.reshape(len(values), -1) * self.scale

    def _log_density(self, prediction: Regression, targets: Tensor) -> Tensor:
        columns = targets.reshape(len(targets), -1).shape[1]
        return regression.log_density_each(prediction, targets) - self.scale.log().expand(columns).sum()

    def _crps(self, prediction: Regression, targets: Tensor) -> Tensor:
        return self._columns(regression.crps_each(prediction, targets)).mean(1)
