"""Per-example gradients by vmap, in float64, to hold squared gradients against."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from posterity.calling import call
from posterity.curvature import gradient_moments


def randn(*shape: int, seed: int = 0) -> Tensor:
    """The same numbers on every device, on the one of the context."""
    generator = torch.Generator("cpu").manual_seed(seed)
    drawn = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
    return drawn.to(torch.get_default_device())


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """A mean over examples, with a different curvature for each output."""
    weights = torch.linspace(0.5, 2, outputs[0].numel(), dtype=outputs.dtype, device=outputs.device).view_as(outputs[0])
    return ((outputs - targets) ** 2 * weights).flatten(1).sum(1).mean()


def by_vmap(module: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[dict, dict]:
    params = {name: p.detach() for name, p in module.named_parameters()}
    buffers = dict(module.named_buffers())

    def one(params, x, y):
        return loss(functional_call(module, {**params, **buffers}, (x[None],)), y[None])

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")
        each = vmap(grad(one), in_dims=(None, 0, 0))(params, inputs, targets)
    return {k: g.mean(0) for k, g in each.items()}, {k: g.square().mean(0) for k, g in each.items()}


def by_example(module: nn.Module, inputs, targets) -> tuple[dict, dict]:
    """Moments of the gradients of each example's loss, all from one pass with the same dropout masks."""
    names, params = zip(*module.named_parameters(), strict=True)
    outputs, batch = call(module, inputs), range(len(targets))
    each = [torch.autograd.grad(loss(outputs[[i]], targets[[i]]), params, retain_graph=True) for i in batch]
    gradients = {name: torch.stack(own) for name, own in zip(names, zip(*each, strict=True), strict=True)}
    return {k: g.mean(0) for k, g in gradients.items()}, {k: g.square().mean(0) for k, g in gradients.items()}


def close(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-10) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert value.abs().max() > 0, name
        error = (found[name] - value).abs().max() / value.abs().max()
        assert error < tolerance, (name, float(error))


def check(module: nn.Module, inputs: Tensor, tolerance: float = 1e-10) -> None:
    module = module.double()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using padding='same'", UserWarning)  # torch's own word on even kernels
        targets = randn(*module(inputs).shape, seed=9)
        mean, square = gradient_moments(module, loss, (inputs, targets))
        expected = by_vmap(module, inputs, targets)
    close(mean, expected[0], tolerance)
    close(square, expected[1], tolerance)
