"""Generalised Gauss-Newton and Fisher matrices of a network's mean loss: diagonal, Kronecker, full, last layer.

With f the outputs of example i, J = ∂f/∂w, and H = -∂² log p(y | f)/∂f² (its expectation over y where it depends on y,
as under a ``HeteroscedasticGaussian``), every matrix here is

    1/B Σᵢ Σ_s v vᵀ,   v = Jᵀ c_s,

for a few columns c of the size of the outputs:

    gauss_newton          H = Σ_s c_s c_sᵀ, one column for each output
    monte_carlo_fisher    c = ∂/∂f (-log p(y_s | f)) / √S for S labels drawn from the model: the same in expectation
    empirical_fisher      c = ∂/∂f (-log p(y | f)) with the label itself

so that one backward pass for each column gives any structure. The network is used as it stands: put it in eval mode for
running statistics and no dropout.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vjp, vmap
from torch.utils._pytree import tree_map

from posterity.calling import arguments, call, functional_call
from posterity.curvature.kfac import KroneckerCapture, KroneckerCurvature, Sharing
from posterity.curvature.outer import examples_at_once
from posterity.curvature.squared import SquareCapture
from posterity.flat import Layout
from posterity.last_layer import features, parameter_order
from posterity.networks import buffers_kept, differentiable
from posterity.probability.likelihoods import Likelihood
from posterity.types import Batch, Params, PosterityError
from posterity.unrolled import explained, transformable

_OTHER = "use structure='last-layer', or 'kronecker' with linearised=False"

Columns = Callable[[Likelihood, Tensor, Tensor], Tensor]
"""(likelihood, outputs [B, C], targets) → columns [S, B, C]."""


def gauss_newton(likelihood: Likelihood, outputs: Tensor, targets: Tensor) -> Tensor:
    """A square root of the likelihood's Hessian: H = Σ_s c_s c_sᵀ."""
    values, vectors = torch.linalg.eigh(likelihood.hessian(outputs))
    return (vectors * values.clamp_min(0).sqrt().unsqueeze(-2)).movedim(-1, 0)


def empirical_fisher(likelihood: Likelihood, outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss's own gradient."""
    with torch.enable_grad():
        outputs = outputs.detach().requires_grad_()
        return torch.autograd.grad(-likelihood.log_prob(outputs, targets).sum(), outputs)[0].unsqueeze(0)


def monte_carlo_fisher(draws: int = 1, generator: torch.Generator | None = None) -> Columns:
    """Gradients at labels drawn from the model, ``draws`` for each example."""

    def columns(likelihood: Likelihood, outputs: Tensor, targets: Tensor) -> Tensor:
        drawn = [likelihood.sample(outputs, generator) for _ in range(draws)]
        each = [empirical_fisher(likelihood, outputs, labels) for labels in drawn]
        return torch.cat(each) / draws**0.5

    return columns


def weighted(columns: Columns, weights: Tensor | None) -> Columns:
    """Columns that multiply every example's curvature by its weight, where it has one, as so many copies would.

    Of the Kronecker factors only G takes in the weights; like d, they are taken to be independent of u.
    """
    if weights is None:
        return columns
    return lambda likelihood, outputs, targets: columns(likelihood, outputs, targets) * weights.sqrt().unsqueeze(-1)


def diagonal(module: nn.Module, likelihood: Likelihood, batch: Batch, columns: Columns = gauss_newton) -> Params:
    """The diagonal, by parameter name."""
    watch = SquareCapture(module)
    _backward(module, likelihood, batch, columns, watch)
    return watch.sums


def kronecker(
    module: nn.Module,
    likelihood: Likelihood,
    batch: Batch,
    columns: Columns = gauss_newton,
    sharing: Sharing = "expand",
) -> KroneckerCurvature:
    """Kronecker factors of Linear layers and convolutions, the diagonal of other parameters."""
    watch = KroneckerCapture(module, sharing)
    _backward(module, likelihood, batch, columns, watch)
    return watch.curvature


def full(
    module: nn.Module,
    likelihood: Likelihood,
    batch: Batch,
    columns: Columns = gauss_newton,
    names: tuple[str, ...] | None = None,
) -> Tensor:
    """The whole matrix [P, P] over the parameters in ``names`` (all by default), in their order: for small networks."""
    everything = {name: p.detach() for name, p in module.named_parameters()}
    params = {name: everything.pop(name) for name in names or tuple(everything)}
    layout, given = Layout.of(params), arguments(batch.inputs)

    def vectors(own: Any, cs: Tensor) -> Tensor:
        def outputs(params: Params) -> Tensor:
            args, kwargs = tree_map(lambda t: t.unsqueeze(0), own)
            return functional_call(module, {**everything, **params}, args, kwargs).flatten()

        _, pull = vjp(outputs, params)  # type: ignore[misc]
        (each,) = vmap(pull)(cs)
        return torch.cat([each[name].reshape(len(cs), -1) for name in layout.names], 1)

    cs = columns(likelihood, _outputs(module, batch), batch.targets).transpose(0, 1)
    size = examples_at_once(cs.shape[1] * layout.total, cs.device)
    total = torch.zeros(layout.total, layout.total, dtype=cs.dtype, device=cs.device)
    for start in range(0, len(cs), size):
        own, some = tree_map(itemgetter(slice(start, start + size)), (given, cs))
        with explained("torch cannot take this network's derivatives by example", _OTHER), transformable(module):
            v = vmap(vectors)(own, some).flatten(0, 1)
        total.addmm_(v.T, v, alpha=1 / len(cs))
    return total


def last_layer(module: nn.Module, likelihood: Likelihood, batch: Batch, columns: Columns = gauss_newton) -> Tensor:
    """The whole matrix over the last layer's weight and bias, from the features φ that reach it: for any network.

    Its blocks, one for each pair of outputs, are 1/B Σᵢ Kᵢ[o, p] φᵢ φᵢᵀ with K = Σ_s c_s c_sᵀ.
    """
    layer, phi, outputs = features(module, batch.inputs)
    cs = columns(likelihood, outputs, batch.targets)
    K = torch.einsum("sbo,sbp->bop", cs, cs) / len(phi)
    total = phi.new_empty(K.shape[1], phi.shape[1], K.shape[1], phi.shape[1])
    for o, k in enumerate(K.unbind(1)):
        weighted = torch.einsum("bp,bj->bpj", k[:, o:], phi).flatten(1)
        blocks = (phi.T @ weighted).unflatten(1, (-1, phi.shape[1]))
        total[o, :, o:], total[o:, :, o] = blocks, blocks.permute(1, 2, 0)  # the matrix is symmetric
    order = parameter_order(layer).to(phi.device)
    return total.flatten(2).flatten(0, 1)[order][:, order]


def _backward(
    module: nn.Module, likelihood: Likelihood, batch: Batch, columns: Columns, watch: SquareCapture | KroneckerCapture
) -> None:
    """One watched backward pass for each column: the first reaches all parameters, the others only what is needed."""
    params = [p for p in module.parameters() if p.requires_grad]
    with buffers_kept(module), differentiable(module), torch.enable_grad(), watch.on():
        outputs = call(module, batch.inputs)
        _check_outputs(outputs)
        outputs = outputs.view_as(outputs)  # a hook on what a backward pass starts from would not run
        first, *others = columns(likelihood, outputs.detach(), batch.targets) / len(outputs)
        found = torch.autograd.grad(outputs, params, first, retain_graph=True, allow_unused=True)
        watch.check_complete([p for p, gradient in zip(params, found, strict=True) if gradient is not None])
        for c in others:
            torch.autograd.grad(outputs, watch.needed(params), c, retain_graph=True, allow_unused=True)


@torch.no_grad()
def _outputs(module: nn.Module, batch: Batch) -> Tensor:
    with buffers_kept(module):
        outputs = call(module, batch.inputs)
    _check_outputs(outputs)
    return outputs


def _check_outputs(outputs: Tensor) -> None:
    if outputs.dim() != 2:
        raise PosterityError(
            f"curvature needs outputs of shape [batch, outputs], got {tuple(outputs.shape)}: where an example has "
            "several rows of them, such as words or pixels, use another method, such as SWAG or IVON"
        )
