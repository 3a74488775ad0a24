"""Can the posterior tell that an input is of another kind than its training data?

Positive is in-distribution. Three scores: the confidence max p, the negative entropy of the prediction, and the
negative mutual information of label and weights (epistemic uncertainty). Out-of-distribution data must be standardised
with the in-distribution statistics (``DataSet.in_units_of``), else the network is asked another question.

The distance of the SWAG study compares the two entropy histograms: 29 bins with edges at 30 logarithmic steps from 1e-8
to 10^½ nats, 1e-7 added to every count, normalised to p and q; then KL(p‖q) + KL(q‖p). It depends on the smoothing, and
entropies outside the bins are not counted.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posterity.evaluation.checks import probabilities, row_weights
from posterity.evaluation.ranking import Ranking
from posterity.prediction import Classification
from posterity.types import PosterityError

__all__ = ["certainties", "entropy_divergence", "ood_figures"]

SMOOTHING = 1e-7


def certainties(prediction: Any) -> dict[str, Tensor]:
    """Scores that should be high for inputs of the known kind, by name."""
    probs = probabilities(prediction).double()
    scores = {"confidence": probs.amax(1), "entropy": -torch.special.entr(probs).sum(1)}
    if isinstance(prediction, Classification):
        scores["epistemic"] = -prediction.epistemic.double().cpu()
    return scores


def ood_figures(inside: Any, outside: Any, weights: Tensor | None = None) -> dict[str, Tensor]:
    """AUROC, AUPR and FPR at 95% TPR for each score, and the divergence of the entropy histograms.

    Args:
        inside: Prediction or probabilities of in-distribution inputs.
        outside: The same of out-of-distribution inputs, over the same classes.
        weights: How often each example counts, in-distribution ones first, [..., n + m].
    """
    known, unknown = certainties(inside), certainties(outside)
    n, m = len(known["entropy"]), len(unknown["entropy"])
    positive = torch.arange(n + m) < n
    rows = row_weights(weights, n + m)
    figures: dict[str, Tensor] = {}
    for name in [name for name in known if name in unknown]:
        scores = torch.cat([known[name], unknown[name]])
        ranking = Ranking(scores, positive, rows)
        figures |= {f"auroc_{name}": ranking.auroc(), f"aupr_{name}": ranking.aupr(), f"fpr95_{name}": ranking.fpr()}
    figures["entropy_kl"] = entropy_divergence(-known["entropy"], -unknown["entropy"], (rows[..., :n], rows[..., n:]))
    return figures


def entropy_divergence(inside: Any, outside: Any, weights: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """KL(p‖q) + KL(q‖p) of the two entropy histograms; entropies in nats."""
    edges = torch.logspace(-8, 0.5, 30, dtype=torch.float64)
    log_shares = []
    for i, values in enumerate((inside, outside)):
        values = torch.as_tensor(values).double().cpu()
        if values.ndim != 1 or not len(values):
            raise PosterityError(f"entropies must be a list of numbers, got shape {tuple(values.shape)}")
        rows = row_weights(weights[i] if weights else None, len(values))
        index = torch.bucketize(values, edges, right=True)  # 0 and 30 are outside
        counts = rows @ torch.nn.functional.one_hot(index, 31).to(rows.dtype)[:, 1:-1]
        shares = counts.double() + SMOOTHING
        log_shares.append((shares / shares.sum(-1, keepdim=True)).log())
    p, q = log_shares
    return ((p.exp() - q.exp()) * (p - q)).sum(-1)
