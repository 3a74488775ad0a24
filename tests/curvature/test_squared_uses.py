"""Layers used twice, with other weights or with shared ones: added up before squaring, or refused."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.curvature.squares import by_example, by_vmap, check, close, loss, randn
from torch import Tensor, nn
from torch.func import functional_call

from posterity.curvature import capture, gradient_moments, squared_gradients
from posterity.curvature.squared import check_is_mean
from posterity.types import PosterityError


def test_a_sum_where_a_mean_was_promised_is_refused():
    module, batch = nn.Linear(5, 4).double(), (randn(6, 5), randn(6, 4))
    with pytest.raises(PosterityError, match="mean over examples"):
        squared_gradients(module, lambda f, y: (f - y).square().sum(), batch)


def test_a_mean_of_bfloat16_is_taken_for_one():
    """Its rounding makes the mean of a batch differ from that of its halves by more than a hundredth."""
    targets, g = torch.arange(40) % 2, torch.Generator().manual_seed(0)
    for outputs in torch.randn(1000, 40, 2, generator=g).bfloat16():
        check_is_mean(F.cross_entropy, outputs, targets)


class Twice(nn.Module):
    """A layer called twice."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(torch.tanh(self.layer(x)))


@pytest.mark.parametrize("lead", [(), (3,), (40,)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_the_uses_of_a_linear_layer_add_up_before_squaring(lead, bias):
    check(Twice(nn.Linear(5, 5, bias=bias)), randn(6, *lead, 5))


def test_a_linear_layer_used_on_vectors_and_on_sequences():
    class Both(Twice):
        def forward(self, x):
            return self.layer(x).mean(1) * self.layer(x.mean(1))

    check(Both(nn.Linear(5, 4)), randn(6, 3, 5))


def test_a_use_without_gradients_does_not_count():
    class Looks(Twice):
        def forward(self, x):
            with torch.no_grad():
                before = self.layer(x)
            return self.layer(x + before)

    module, inputs, targets = Looks(nn.Linear(5, 5)).double(), randn(6, 5), randn(6, 5, seed=9)
    fixed = (inputs + module.layer(inputs)).detach()
    close(squared_gradients(module, loss, (inputs, targets)), by_vmap_of_layer(module, fixed, targets))


def by_vmap_of_layer(module: Twice, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    return {f"layer.{name}": square for name, square in by_vmap(module.layer, inputs, targets)[1].items()}


def test_a_layer_used_with_different_weights_is_refused():
    class Other(Twice):
        def forward(self, x):
            other = {name: 2 * p for name, p in self.layer.named_parameters()}
            return self.layer(x) + functional_call(self.layer, other, (x,))

    with pytest.raises(PosterityError, match="different weights"):
        squared_gradients(Other(nn.Linear(5, 4)).double(), loss, (randn(6, 5), randn(6, 4)))


class Tied(nn.Module):
    """A table that words are looked up in and scored by, beside a layer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Module(), nn.Linear(7, 3)
        self.body.words, self.body.scores = nn.Embedding(7, 5), nn.Linear(5, 7, bias=False)
        self.body.scores.weight = self.body.words.weight
        self.body.forward = lambda i: self.body.scores(torch.tanh(self.body.words(i).mean(1)))

    def forward(self, indices):
        return self.head(self.body(indices))


def test_layers_that_share_a_parameter_have_the_squares_of_both_uses():
    module = Tied().double()
    indices = torch.tensor([[1, 1, 2], [0, 3, 6], [5, 5, 5], [4, 2, 1]])
    targets = randn(4, 3, seed=9)
    mean, square = gradient_moments(module, loss, (indices, targets))
    expected = by_vmap(module, indices, targets)
    close(mean, expected[0])
    close(square, expected[1])


@pytest.mark.parametrize("layer", [nn.Conv1d(5, 5, 1), nn.LayerNorm(4)], ids=["convolution", "normalisation"])
def test_the_uses_of_other_layers_add_up_before_squaring(layer):
    check(Twice(layer), randn(6, 5, 4))


def test_a_network_that_is_called_twice_in_one_pass_is_refused():
    module, inputs = Twice(nn.LayerNorm(4)).double().layer, randn(6, 4)
    with pytest.raises(PosterityError, match="used twice"), capture(module):
        (module(inputs) * module(2 * inputs)).mean().backward()


@pytest.mark.parametrize("layer", [nn.Linear(5, 5), nn.GroupNorm(1, 5)], ids=["linear", "normalisation"])
def test_a_batch_that_is_folded_into_other_dimensions_for_a_while(layer):
    class Folded(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.third = nn.Linear(5, 5), layer, nn.Linear(5, 4)

        def forward(self, x):
            return self.third(self.second(self.first(x).flatten(0, 1)).unflatten(0, x.shape[:2]))

    check(Folded(), randn(6, 3, 5))


class Batched(nn.Module):
    """Looks places up that all examples share."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.conv, self.out = nn.Embedding(6, 5), nn.Conv1d(5, 4, 3), nn.Linear(4, 4)

    def forward(self, x):
        return self.out(self.conv((x + self.places(torch.arange(x.shape[1]))).mT).mean(-1))


@pytest.mark.parametrize("positions", [4, 6])
def test_places_that_all_examples_share(positions):
    check(Batched(), randn(6, positions, 5))


def test_a_misused_layer_in_a_network_that_torch_cannot_follow_is_refused():
    class Branching(Batched):
        def forward(self, x):
            return super().forward(x if float(x.sum()) > 0 else -x)

    with pytest.raises(PosterityError, match="let places see examples first, and once in a pass"):
        squared_gradients(Branching().double(), loss, (randn(6, 4, 5), randn(6, 4)))


def test_a_parameter_used_outside_its_layer_is_refused():
    class Borrowed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 4).double()

        def forward(self, x):
            return x @ self.layer.weight.T

    with pytest.raises(PosterityError, match="outside its forward"):
        squared_gradients(Borrowed(), loss, (randn(6, 5), randn(6, 4)))


class Decoder(nn.Module):
    """Uses a weight that is another layer's, too."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, h):
        return F.linear(h, self.weight.T)


class Autoencoder(nn.Module):
    """Decodes by the weight of the layer that encodes: read off it, or held by a decoder."""

    def __init__(self, layer: nn.Module, held: bool) -> None:
        super().__init__()
        self.layer = layer
        self.decode = Decoder(layer.weight) if held else lambda h: h @ self.layer.weight.squeeze()

    def forward(self, x):
        return self.decode(torch.tanh(self.layer(x)).squeeze(-1))


@pytest.mark.parametrize("layer", [nn.Linear(5, 4), nn.Conv1d(5, 4, 1)], ids=["linear", "convolution"])
def test_a_parameter_used_by_its_layer_and_outside_it_is_refused(layer):
    inputs = randn(6, 5) if isinstance(layer, nn.Linear) else randn(6, 5, 1)
    with pytest.raises(PosterityError, match="outside its forward, too"):
        squared_gradients(Autoencoder(layer.double(), held=False), loss, (inputs, randn(6, 5)))


@pytest.mark.filterwarnings("ignore::posterity.types.PosterityWarning")  # it is run a second time
def test_a_parameter_held_by_another_module_has_the_squares_of_both_uses():
    check(Autoencoder(nn.Linear(5, 4), held=True), randn(6, 5))


@pytest.mark.filterwarnings("ignore::posterity.types.PosterityWarning")
def test_layers_without_per_example_gradients_are_refused():
    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(5, dtype=torch.float64))

        def forward(self, x):
            return (x - x.mean(0)) * self.scale

    with pytest.raises(PosterityError, match="mixes examples"):
        squared_gradients(Centred(), loss, (randn(6, 5), randn(6, 5)))

    class Noisy(Centred):
        def forward(self, x):
            return F.dropout(x, 0.5) * self.scale

    with pytest.raises(PosterityError, match="no per-example gradients"):
        squared_gradients(Noisy(), loss, (randn(6, 5), randn(6, 5)))


def test_float16_is_refused():
    module = nn.Linear(5, 4).half()
    with pytest.raises(PosterityError, match="float16"), capture(module):
        module(torch.ones(6, 5).half()).mean().backward()


class SequenceFirst(nn.Module):
    """Turns examples into the second dimension, as recurrent layers want it unless told otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.memory, self.head = nn.Linear(3, 6), nn.GRU(6, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.head(self.memory(self.embedding(x.transpose(0, 1)))[0][-1])


@pytest.mark.parametrize("positions", [5, 6])
def test_as_many_positions_as_examples_are_told_apart(positions):
    """Where they are as many, squares would be sums over examples of what belongs to positions."""
    module, inputs, targets = SequenceFirst().double(), randn(6, positions, 3), randn(6, 4)
    close(squared_gradients(module, loss, (inputs, targets)), by_example(module, inputs, targets)[1])
    check(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)), randn(6, 6, 3))
    check(nn.Sequential(nn.Conv1d(3, 6, 3), nn.Flatten(), nn.Linear(24, 4)), randn(6, 3, 6))
