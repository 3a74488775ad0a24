"""Linear layers whose zeros are neither stored nor multiplied: compressed sparse rows, on the CPU.

What compaction leaves is *unstructured*: zeros scattered over rows and columns that are alive. A product in CSR form
costs about ten times more per non-zero than a dense one, so it only pays when few are left; this is measured on the
machine at hand, layer by layer, never assumed.
"""

from __future__ import annotations

import copy
import warnings

import torch
from torch import Tensor, fx, nn

from posterity import calling
from posterity.compression.speed import ratio, rows, timings
from posterity.types import Inputs

__all__ = ["SparseLinear", "with_sparse_layers"]

_WORTH_TRYING = 0.7
"""Zeros below this fraction have never been seen to pay; measuring them would only take time."""

_CLEARLY = 0.9
"""A sparse layer must be this much faster: a tie is not worth a second storage format."""


class SparseLinear(nn.Module):
    """x ↦ x Wᵀ + b with W in compressed sparse rows.

    Args:
        dense: The layer whose zeros are left out.
    """

    row_starts: Tensor
    columns: Tensor
    values: Tensor
    bias: Tensor

    def __init__(self, dense: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = dense.in_features, dense.out_features
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch calls its CSR layout a beta
            weight = dense.weight.detach().to_sparse_csr()
        self.register_buffer("row_starts", weight.crow_indices())
        self.register_buffer("columns", weight.col_indices())
        self.register_buffer("values", weight.values())
        bias = torch.zeros(self.out_features).to(dense.weight) if dense.bias is None else dense.bias.detach().clone()
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] → [..., out]."""
        weight = torch.sparse_csr_tensor(
            self.row_starts, self.columns, self.values, (self.out_features, self.in_features), check_invariants=False
        )
        flat = x.reshape(-1, self.in_features)
        return torch.addmm(self.bias.unsqueeze(1), weight, flat.t()).t().reshape(*x.shape[:-1], self.out_features)

    @property
    def kept(self) -> int:
        """How many weights are left."""
        return self.values.numel()

    def dense(self) -> nn.Linear:
        """The ordinary layer that computes the same."""
        layer = nn.utils.skip_init(nn.Linear, self.in_features, self.out_features, dtype=self.values.dtype)
        row = torch.repeat_interleave(torch.arange(self.out_features), self.row_starts.diff())
        weight = torch.zeros(self.out_features, self.in_features, dtype=self.values.dtype)
        weight[row, self.columns] = self.values
        layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(self.bias.clone())
        return layer

    def extra_repr(self) -> str:
        """Sizes and how many weights are left."""
        return f"in_features={self.in_features}, out_features={self.out_features}, kept={self.kept}"


def with_sparse_layers(
    network: fx.GraphModule, example: Inputs, batches: tuple[int, ...]
) -> tuple[fx.GraphModule, list[str]]:
    """A copy in which every linear layer runs sparse that is measured to be faster so at every batch size.

    Returns:
        The copy, and the names of the layers that changed.
    """
    chosen: list[str] = []
    sparse = copy.deepcopy(network)
    for name, layer in network.named_modules():
        if type(layer) is not nn.Linear or float((layer.weight == 0).double().mean()) < _WORTH_TRYING:
            continue
        candidate = SparseLinear(layer)
        seen = _input_of(network, layer, example)
        if all(_faster(candidate, layer, rows(seen, batch)) for batch in batches):
            sparse.set_submodule(name, candidate)
            chosen.append(name)
    return sparse, chosen


def _faster(candidate: nn.Module, dense: nn.Module, x: Tensor) -> bool:
    seconds = timings({"candidate": candidate, "dense": dense}, x, budget=0.05)
    return ratio(seconds["candidate"], seconds["dense"]) < _CLEARLY


def _input_of(network: nn.Module, layer: nn.Module, example: Inputs) -> Tensor:
    """What reaches a layer when the network is called."""
    seen: list[Tensor] = []
    hook = layer.register_forward_hook(lambda _module, args, _output: seen.append(args[0]))
    try:
        with torch.no_grad():
            calling.call(network, example)
    finally:
        hook.remove()
    return seen[0]
