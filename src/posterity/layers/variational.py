"""A network whose weights are random while it trains: ``Variational``, its KL, the ELBO, and the way back.

    ELBO(q) = N·mean_i E_q[log p(y_i | f_w(x_i))] − temperature·KL(q‖p)

In train mode every call draws anew; in eval mode the network computes with the mean of its weights, as dropout does.
Predictions with uncertainty come from a posterior: ``plain_moments`` gives mean and std by the plain network's names.

Drawn weights are there during a call only. ``torch.utils.checkpoint`` inside the network runs layers again after it, in
the backward pass, and finds none: use it around the whole converted network, or leave such layers out (``which``).
"""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any, cast

import torch
from torch import Tensor, nn

from posterity.layers.blocks import Block
from posterity.networks import buffers_kept, hooked, results_kept
from posterity.random import global_seed
from posterity.types import Params, PosterityError

__all__ = ["Variational", "elbo", "kl", "plain_moments"]


class Variational(nn.Module):
    """A plain network and the distributions over its parameters; made by ``posterity.variational``.

    Attributes:
        net: The network, its Bayesian parameters taken out.
        swapped: The plain class of every layer that changed its class, by name.
    """

    _looked = False

    def __init__(self, net: nn.Module, blocks: list[Block], swapped: dict[str, type[nn.Module]]) -> None:
        super().__init__()
        self.net = net
        self._blocks = nn.ModuleList(blocks)
        self.swapped = swapped

    @property
    def blocks(self) -> list[Block]:
        """Distributions over the Bayesian parameters."""
        return cast(list[Block], list(self._blocks))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The network's outputs: with fresh noise in train mode, at the mean in eval mode."""
        if self.training:
            # Not a decorator: that would import torch's compiler, which takes over a second, for everyone.
            look = torch.compiler.disable(self._look) if torch.compiler.is_compiling() else self._look
            look(*args, **kwargs)
        return self._pass(*args, **kwargs)

    def _look(self, *args: Any, **kwargs: Any) -> None:
        """What is done before the first training pass; it is not compiled, since its answer changes once."""
        if not self._looked:
            self._find_shared(*args, **kwargs)
            self._looked = True

    def _pass(self, *args: Any, **kwargs: Any) -> Any:
        try:
            with self._whole_precision():
                for block in self.blocks:
                    block.slots.fill(block.noisy() if self.training else {"": block.center()})
            return self.net(*args, **kwargs)
        finally:
            for block in self.blocks:
                block.slots.clear(block.beside)

    @torch.no_grad()
    def _find_shared(self, *args: Any, **kwargs: Any) -> None:
        """Mark layers that a pass calls more than once, so that they share a draw, by a pass that leaves no trace."""
        layers = [layer for name in self.swapped if hasattr(layer := self.net.get_submodule(name), "shared")]
        if not layers:
            return
        calls: Counter[nn.Module] = Counter()
        seed = global_seed(0, self.blocks[0].mean.device)
        with hooked(layers, lambda called, *_: calls.update([called])), buffers_kept(self.net), seed:
            self._pass(*args, **kwargs)
        for layer, times in calls.items():
            layer.shared = times > 1  # type: ignore[assignment]

    def kl(self) -> Tensor:
        """KL(q‖p), summed over all Bayesian parameters."""
        with self._whole_precision():
            return _total([block.kl() for block in self.blocks])

    def _whole_precision(self) -> torch.autocast:
        """Autocast is for the network's passes; weights and densities are made in whole precision."""
        return torch.autocast(self.blocks[0].mean.device.type, enabled=False)

    @torch.no_grad()
    def mean(self) -> Params:
        """The mean of every parameter of the plain network, deterministic ones included, by name."""
        params = {name: p.detach() for name, p in self.net.named_parameters()}
        for block in self.blocks:
            params |= block.slots.layout.unflatten(block.center().detach())
        return params

    @torch.no_grad()
    def std(self) -> Params:
        """The standard deviation of the Bayesian parameters."""
        stds: Params = {}
        for block in self.blocks:
            stds |= block.slots.layout.unflatten(block.std())
        return stds

    @torch.no_grad()
    def draw(self) -> Params:
        """One set of weights of the plain network, by name."""
        params = {name: p.detach() for name, p in self.net.named_parameters()}
        for block in self.blocks:
            params |= block.slots.layout.unflatten(block.sample())
        return params

    @torch.no_grad()
    def plain(self) -> nn.Module:
        """An ordinary copy of the network, its weights at their means."""
        net, slots = copy.deepcopy((self.net, [block.slots for block in self.blocks]), results_kept(self.net))
        params = self.mean()
        for taken in slots:
            taken.restore(params)
        for name, plain_class in self.swapped.items():
            net.get_submodule(name).__class__ = plain_class
        return net


def variational_parts(module: nn.Module) -> list[Variational]:
    """The converted networks in a module: mostly the module itself."""
    parts = [m for m in module.modules() if isinstance(m, Variational)]
    if not parts:
        raise PosterityError(f"{type(module).__name__} holds no Bayesian weights: convert it with variational(module)")
    return parts


def kl(module: nn.Module) -> Tensor:
    """KL(q‖p) of everything Bayesian in a module: a SUM over weights, to be divided by the number of data once.

    Add it to the loss and go backward once, or ask for it after the likelihood's own backward: before that it may be
    part of the last pass, whose graph a backward uses up.
    """
    return _total([part.kl() for part in variational_parts(module)])


def _total(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum()


def elbo(module: nn.Module, log_likelihood: Tensor, num_data: int, temperature: float = 1.0) -> Tensor:
    """The evidence lower bound of one draw, in nats for the whole data set.

    Args:
        module: A converted network.
        log_likelihood: log p(y | f) of each example of a batch, or their mean.
        num_data: N, the number of training examples.
        temperature: What the KL is multiplied by; 1 for the Bayes posterior.

    A loss of the usual size is ``-elbo(...) / num_data``.
    """
    return num_data * log_likelihood.mean() - temperature * kl(module)


def plain_moments(module: nn.Module) -> tuple[Params, Params]:
    """Means of all parameters and stds of the Bayesian ones, by their names in the plain network."""
    if not isinstance(module, Variational):
        raise PosterityError(f"plain_moments needs what variational() returned, got {type(module).__name__}")
    return module.mean(), module.std()
