"""The padding rows of embeddings, which stay as they were during a fit and in the draws of its posterior.

No gradient reaches them, so a method would give them the noise of its prior.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor, nn

__all__ = ["PaddingRow", "padding_rows"]


@dataclass(frozen=True, eq=False)
class PaddingRow:
    """One row of one embedding.

    Attributes:
        name: Of the embedding's weight in its network.
        weight: That weight.
        index: Which row it is.
        value: What stands in it.
    """

    name: str
    weight: Tensor
    index: int
    value: Tensor

    @torch.no_grad()
    def put_back(self) -> None:
        """Undo what an optimizer did to the row: weight decay, or noise."""
        self.weight[self.index] = self.value


def padding_rows(module: nn.Module) -> list[PaddingRow]:
    """The padding rows of all embeddings, except where another layer shares the weight and so trains the row."""
    uses = Counter(id(p) for part in module.modules() for p in part.parameters(recurse=False))
    index = {
        f"{name}.weight".lstrip("."): layer.padding_idx
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.padding_idx is not None
    }
    return [
        PaddingRow(name, p, index[name], p[index[name]].detach().clone())
        for name, p in module.named_parameters()
        if name in index and uses[id(p)] == 1
    ]
