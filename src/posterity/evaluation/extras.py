"""What only a comparison's report shows of a posterior: pictures, sentences, decision surfaces, costs."""

from __future__ import annotations

import base64
from typing import Any

import torch
from torch import Tensor

from posterity.calling import nested_tensors
from posterity.data import DataSet, Kind, Standardiser
from posterity.posteriors import Posterior, WeightPosterior
from posterity.prediction import Classification
from posterity.run import Run

__all__ = ["TrainingState", "shown_examples", "stored", "surface"]

_GRID = 50
_DRAWN = 8


class TrainingState:
    """A callback that measures what training holds in memory: weights, gradients, optimizer and collector."""

    def __init__(self) -> None:
        self.bytes = 0

    def on_epoch(self, run: Run, figures: dict[str, float]) -> None:
        """Measure the run as it is now; the largest counts."""
        weights = list(run.module.parameters())
        gradients = [p for p in weights if p.requires_grad]  # which are as large, and gone between two steps
        states = nested_tensors([run.optimizer.state_dict(), run.collector.state_dict()])
        held = [*weights, *run.module.buffers(), *gradients, *states]
        self.bytes = max(self.bytes, sum(t.numel() * t.element_size() for t in held))


def stored(posterior: Posterior) -> int:
    """How many numbers the posterior keeps: what its file would hold."""
    own = sum(t.numel() for t in nested_tensors(posterior.state()) if t.is_floating_point())
    bank = posterior.bank if isinstance(posterior, WeightPosterior) else {}
    return own + sum(t.numel() for t in bank.values()) + sum(stored(part) for part in posterior.parts)


def shown_examples(dataset: DataSet, examples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The examples with what a reader can look at: a picture's bytes, or a text."""
    inputs, pixels = dataset.test[0], dataset.pixels if dataset.kind == Kind.IMAGE else None
    return [example | _shown(dataset, pixels, inputs[example["index"]]) for example in examples]


def surface(posterior: Posterior, dataset: DataSet, draws: int) -> dict[str, Any]:
    """For inputs in a plane: probability of class 1 and entropy on a grid, of the mean and of single draws."""
    low, high = dataset.test[0].amin(0) - 0.5, dataset.test[0].amax(0) + 0.5
    x, y = (torch.linspace(float(a), float(b), _GRID) for a, b in zip(low, high, strict=True))
    grid = torch.cartesian_prod(x, y).to(posterior.device)
    prediction = posterior.predict(grid, draws, keep_samples=True)
    assert isinstance(prediction, Classification)
    assert prediction.samples is not None  # they were asked for
    shown = torch.linspace(0, len(dataset.test[1]) - 1, min(300, len(dataset.test[1]))).long()
    return {
        "x": x.tolist(),
        "y": y.tolist(),
        "probability": _table(prediction.probs[:, 1]),
        "entropy": _table(prediction.entropy),
        "draws": [_table(draw) for draw in prediction.samples[:_DRAWN, :, 1]],
        "points": dataset.test[0][shown].tolist(),
        "labels": dataset.test[1][shown].tolist(),
    }


def _shown(dataset: DataSet, pixels: Standardiser | None, example: Tensor) -> dict[str, Any]:
    if dataset.kind == Kind.TEXT and dataset.vocabulary is not None:
        return {"text": dataset.vocabulary.decode(example)}
    if pixels is None:
        return {"values": [round(v, 3) for v in example.flatten()[:20].tolist()]}
    picture = (pixels.invert(example[None])[0].clamp(0, 1) * 255).round().byte().permute(1, 2, 0).contiguous()
    return {"picture": {"shape": list(picture.shape), "bytes": base64.b64encode(picture.numpy().tobytes()).decode()}}


def _table(values: Tensor) -> list[list[float]]:
    """Grid values by row of y, three digits."""
    return [[round(v, 3) for v in row] for row in values.view(_GRID, _GRID).T.tolist()]
