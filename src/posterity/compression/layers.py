"""Layers that compute the same as torch's own, only faster on the CPU; chosen where that is measured, never assumed.

``SparseLinear`` neither stores nor multiplies zeros. Compaction leaves zeros scattered over rows and columns that are
alive; a product in compressed sparse rows costs about ten times more per weight than a dense one, so it pays when few
are left.

``PairedMaxPool2d`` takes maxima of whole rows and columns. torch's own max-pooling looks for the position of each
maximum too, which only training needs, and takes about ten times as long.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from posterity import calling
from posterity.compression.speed import ratio, rows, timings
from posterity.compression.trace import Network
from posterity.networks import duplicate, hooked
from posterity.types import Inputs

__all__ = ["PairedMaxPool2d", "SparseLinear", "with_faster_layers", "with_plain_layers"]

_WORTH_TRYING = 0.7
"""Zeros below this fraction have never been seen to pay; measuring them would only take time."""
_SMALL = 4096
"""Numbers in a tensor below which four calls of torch cost more than one slow one."""
_NO_SLOWER, _FASTER = 1.05, 0.9


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
        bias = torch.zeros(self.out_features).to(dense.weight) if dense.bias is None else dense.bias.detach()
        self.register_buffer("bias", bias.clone().unsqueeze(1))
        self._weight: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] → [..., out]."""
        if self._weight is None:
            shape = (self.out_features, self.in_features)
            self._weight = torch.sparse_csr_tensor(
                self.row_starts, self.columns, self.values, shape, check_invariants=False
            )
        if x.dim() == 2:
            return torch.addmm(self.bias, self._weight, x.t()).t()
        flat = x.reshape(-1, self.in_features)
        return torch.addmm(self.bias, self._weight, flat.t()).t().reshape(*x.shape[:-1], self.out_features)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._weight = None  # it is made of the buffers, which are about to move
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_weight": None}  # torch cannot copy sparse tensors

    @property
    def kept(self) -> int:
        """How many weights are left."""
        return self.values.numel()

    def plain(self) -> nn.Linear:
        """The ordinary layer that computes the same."""
        layer = nn.utils.skip_init(nn.Linear, self.in_features, self.out_features, dtype=self.values.dtype)
        row = torch.repeat_interleave(torch.arange(self.out_features), self.row_starts.diff())
        weight = torch.zeros(self.out_features, self.in_features, dtype=self.values.dtype)
        weight[row, self.columns] = self.values
        layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(self.bias[:, 0].clone())
        return layer

    def extra_repr(self) -> str:
        """Sizes and how many weights are left."""
        return f"in_features={self.in_features}, out_features={self.out_features}, kept={self.kept}"


class PairedMaxPool2d(nn.Module):
    """Max-pooling of 2 × 2 windows side by side, as the maximum of neighbouring rows, then columns."""

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] → [N, C, H/2, W/2]; an odd last row or column is left out."""
        if x.numel() < _SMALL:
            return torch.max_pool2d(x, 2)
        high, wide = x.shape[-2] // 2 * 2, x.shape[-1] // 2 * 2
        tall = torch.maximum(x[..., 0:high:2, :wide], x[..., 1:high:2, :wide])
        return torch.maximum(tall[..., 0::2], tall[..., 1::2])

    def plain(self) -> nn.MaxPool2d:
        """The ordinary layer that computes the same."""
        return nn.MaxPool2d(2)


def _alternative(layer: nn.Module) -> nn.Module | None:
    """Another way to compute what a layer does, if there is one worth timing."""
    if type(layer) is nn.Linear and float((layer.weight == 0).double().mean()) >= _WORTH_TRYING:
        return SparseLinear(layer)
    if type(layer) is nn.MaxPool2d and _window(layer) == (2, 2, 0, 1) and not (layer.ceil_mode or layer.return_indices):
        return PairedMaxPool2d()
    return None


def _window(pool: nn.MaxPool2d) -> tuple[Any, ...]:
    """Kernel, stride, padding and dilation; a pair of equal sizes counts as one."""
    sizes = (pool.kernel_size, pool.stride, pool.padding, pool.dilation)
    return tuple(size[0] if isinstance(size, tuple) and len(set(size)) == 1 else size for size in sizes)


def with_faster_layers(network: Network, example: Inputs, batches: tuple[int, ...]) -> tuple[Network, list[str]]:
    """A copy with every layer replaced that has an alternative, nowhere slower and faster at some batch size.

    Returns:
        The copy, and the names of the layers that changed.
    """
    chosen: list[str] = []
    faster = duplicate(network)
    for name, layer in network.named_modules():
        candidate = _alternative(layer)
        if candidate is None:
            continue
        seen = _input_of(network, layer, example)
        times = [_compared(candidate, layer, rows(seen, batch)) for batch in batches]
        if max(times) <= _NO_SLOWER and min(times) < _FASTER:
            faster.set_submodule(name, candidate)
            chosen.append(name)
    faster.recompile()
    return faster, chosen


def with_plain_layers(network: nn.Module) -> nn.Module:
    """A copy made of torch's own layers again, for exporters."""
    plain = duplicate(network)
    for name, layer in list(plain.named_modules()):
        if isinstance(layer, SparseLinear | PairedMaxPool2d):
            plain.set_submodule(name, layer.plain())
    return plain


def _compared(candidate: nn.Module, layer: nn.Module, x: Tensor) -> float:
    """The candidate's time in units of the layer's."""
    seconds = timings({"candidate": candidate, "layer": layer}, x, budget=0.05)
    return ratio(seconds["candidate"], seconds["layer"])


def _input_of(network: nn.Module, layer: nn.Module, example: Inputs) -> Tensor:
    """What reaches a layer when the network is called."""
    seen: list[Tensor] = []
    with torch.no_grad(), hooked([layer], lambda _module, args, _output: seen.append(args[0])):
        calling.call(network, example)
    return seen[0]
