"""One pass instead of many: mean and variance of every activation, through the network to its outputs.

Weights are independent Gaussians; activations are taken to be independent Gaussians too, layer by layer. With weight
mean W, weight variance V and inputs of mean m and variance v (squares element by element),

    linear, convolution   mean = W m + b,    variance = W² v + V (m² + v) + variance of b
    ReLU, leaky ReLU      exact moments of a rectified Gaussian
    other activations     quadrature
    BatchNorm (eval)      a linear map of each channel
    max-pooling           the mean and variance of the unit with the largest mean
    dropout, always on    mean m, variance (v + p m²)/(1 − p); layers of dropout are off
    average pooling       mean of the means; units of a channel share their noise, so the std is the mean of the stds
    sums, concatenation   of independent terms

and the outputs' Gaussian is turned into a prediction by a fixed set of quasi-random points in output space (256, of
mean 0 and variance 1), which gives probabilities and both kinds of uncertainty at the cost of a few softmaxes. Counts,
whose moments lie in the tail of exp f, have them in closed form.

What is neglected are the correlations between activations, which one layer's weights cause in all later ones: variances
are approximate in deep networks. Sources: Wu et al. 2019 (1810.03958), Frey & Hinton 1999.
"""

from __future__ import annotations

import inspect
import operator
from dataclasses import replace
from functools import cache
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.utils.parametrize import is_parametrized

from posterity.calling import arguments
from posterity.prediction.accumulate import accumulator
from posterity.prediction.moment_rules import FUNCTIONS, LAYERS, METHODS, LayerWeights, Moments, Rule, as_moments
from posterity.prediction.prediction import Prediction
from posterity.probability.likelihoods import Likelihood
from posterity.random import generator_for
from posterity.types import Inputs, Params, PosterityError

__all__ = ["Moments", "Propagation", "normal_points", "output_moments", "predict_by_moments"]

POINTS = 256
"""Points in output space that stand for the outputs' Gaussian."""
_CACHE_FLOATS = 2**18  # of the outputs at these points at a time: a megabyte
_DEVICE_FLOATS = 2**26  # on an accelerator, which wants few large kernels


class Diagonal(Protocol):
    """A posterior whose weights are independent Gaussians."""

    likelihood: Likelihood
    module: nn.Module
    ways: dict[Any, Any]

    def independent_moments(self) -> tuple[Params, Params]:
        """Mean and variance of every parameter."""
        ...


@torch.no_grad()
def predict_by_moments(posterior: Diagonal, inputs: Inputs) -> Prediction:
    """The prediction of a diagonal Gaussian posterior in one pass, without drawing a network."""
    if "moments" not in posterior.ways:  # tracing the network takes longer than one small batch
        posterior.ways["moments"] = Propagation(posterior.module, *posterior.independent_moments())
    outputs: Moments = posterior.ways["moments"].moments(inputs)
    sums = accumulator(posterior.likelihood)
    points = normal_points(outputs.mean[0].numel()).to(outputs.mean).view(-1, 1, *outputs.mean.shape[1:])
    std = outputs.variance.sqrt()
    room = _CACHE_FLOATS if std.device.type == "cpu" else _DEVICE_FLOATS
    for some in points.split(max(1, room // std.numel())):
        sums.add(outputs.mean + std * some)
    known = posterior.likelihood.moments(*outputs)
    exact = {} if known is None else dict(zip(("mean", "aleatoric", "epistemic"), known, strict=True))
    return replace(sums.finish(), draws=1, error=0.0, **exact)


def output_moments(module: nn.Module, mean: Params, variance: Params, inputs: Inputs) -> Moments:
    """Mean and variance of the network's outputs under independent Gaussian weights."""
    return Propagation(module, mean, variance).moments(inputs)


@cache
def normal_points(dimensions: int) -> Tensor:
    """[POINTS, dimensions]: well spread, each coordinate with mean 0 and variance 1, always the same.

    Coordinates beyond those that Sobol's sequence has, as of large images, are those again in other orders.
    """
    engine, most = torch.quasirandom.SobolEngine, torch.quasirandom.SobolEngine.MAXDIM
    uniform = engine(min(dimensions, most), scramble=True, seed=0).draw(POINTS, dtype=torch.float64)
    points = torch.special.ndtri(uniform.clamp(1e-6, 1 - 1e-6))
    points = (points - points.mean(0)) / points.std(0, correction=0)
    generator = generator_for(0)
    orders = (torch.randperm(POINTS, generator=generator) for _ in range((dimensions - 1) // most))
    return torch.cat([points, *(points[order] for order in orders)], 1)[:, :dimensions]


class Propagation(fx.Interpreter):
    """Runs a traced network on means and variances; whatever depends on no weight runs as it is.

    Which weights are random is looked up once, so that ``moments`` itself is made of tensor operations alone.
    """

    def __init__(self, module: nn.Module, mean: Params, variance: Params) -> None:
        if fx.Tracer().is_leaf_module(module, ""):  # a single layer of torch, which fx would look into
            mean, variance = ({f"0.{name}": value for name, value in part.items()} for part in (mean, variance))
            module = nn.Sequential(module)
        super().__init__(_traced(module))
        _check_in_place(self.module)  # type: ignore[arg-type]
        self.extra_traceback = False  # it would end up in the text of our errors
        first = {id(p): name for name, p in module.named_parameters()}
        names = {name: first[id(p)] for name, p in module.named_parameters(remove_duplicate=False)}  # of tied weights
        self.mean, self.variance = ({name: part[own] for name, own in names.items()} for part in (mean, variance))
        self.spread = {name for name, value in self.variance.items() if bool(value.any())}

    def moments(self, inputs: Inputs) -> Moments:
        """Mean and variance of the outputs."""
        args, kwargs = arguments(inputs)
        given = inspect.signature(self.module.forward).bind(*args, **kwargs)  # refuses what the network would
        given.apply_defaults()
        return as_moments(self.run(*given.arguments.values()))

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A layer: by its rule, or as it is when neither it nor its input is random."""
        layer = self.fetch_attr(target)
        own = {name: self.variance[f"{target}.{name}"] for name, _ in layer.named_parameters()}
        if not _random(args, kwargs) and not any(f"{target}.{name}" in self.spread for name in own):
            return layer(*args, **kwargs)
        rule = next((rule for kinds, rule in LAYERS.items() if isinstance(layer, kinds)), None)
        if rule is None or is_parametrized(layer):  # its weight is a function of the random ones
            raise PosterityError(f"moments cannot pass through {type(layer).__name__} at {target!r}: use draws=32")
        center = {name: self.mean[f"{target}.{name}"] for name in own}
        return rule(layer, as_moments(args[0]), LayerWeights(center, own))

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function of torch, by its rule."""
        if target is F.dropout:  # random by itself, whatever it is given
            return FUNCTIONS[target](*args, **kwargs)
        return self._apply(FUNCTIONS, target, args, kwargs)

    def call_method(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A method of a tensor, by its rule."""
        if not _random(args, kwargs):
            return super().call_method(target, args, kwargs)
        return self._apply(METHODS, target, args, kwargs)

    def get_attr(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A parameter that the network reads itself."""
        if target in self.spread:
            return Moments(self.mean[target], self.variance[target])
        return super().get_attr(target, args, kwargs)

    def _apply(self, rules: dict[Any, Rule], target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not _random(args, kwargs):
            return super().call_function(target, args, kwargs)
        if target not in rules:
            name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
            raise PosterityError(f"moments cannot pass through {name}: use draws=32")
        return rules[target](*args, **kwargs)


def _check_in_place(traced: fx.GraphModule) -> None:
    """Refuse a value that is used again after it was written into: rules make new values."""
    order = {node: place for place, node in enumerate(traced.graph.nodes)}
    for node in order:
        layer = traced.get_submodule(str(node.target)) if node.op == "call_module" else None
        writes = getattr(layer, "inplace", False) or node.kwargs.get("inplace", False) or node.target is operator.iadd
        if writes and any(order[user] > order[node] for user in node.all_input_nodes[0].users):
            raise PosterityError(f"moments cannot follow what {node} writes into and is used again: use draws=32")


def _random(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether any argument, or any item of a list of them, is random."""
    lists = [value for value in args if isinstance(value, list | tuple) and not isinstance(value, Moments)]
    return any(isinstance(value, Moments) for value in [*args, *kwargs.values(), *(i for part in lists for i in part)])


def _traced(module: nn.Module) -> fx.GraphModule:
    try:
        return fx.symbolic_trace(module)
    except Exception as error:  # whatever the user's forward raises when it meets a proxy
        raise PosterityError(
            f"{type(module).__name__}.forward cannot be traced, so moments cannot pass through it: use draws=32"
        ) from error
