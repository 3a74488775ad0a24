"""Parameters that a module uses in its own code, beside layers: class tokens, places, scales, shared tables."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys
import warnings
import weakref

import pytest
import torch
import torch.nn.functional as F
from tests.curvature.squares import by_example, close, loss, randn
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from posterity.calling import call
from posterity.curvature import capture, gradient_moments, squared_gradients
from posterity.curvature.ggn import diagonal, full, kronecker
from posterity.curvature.squared import SquareCapture
from posterity.flat import Layout
from posterity.probability.likelihoods import Categorical
from posterity.types import Batch, PosterityError, PosterityWarning


class Block(nn.Module):
    """Attention and a feed-forward part, each with a learned scale, dropout, and whole branches dropped by example."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.RMSNorm(width)])
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.forth, self.back = nn.Linear(width, 8), nn.Linear(8, width)
        self.scales = nn.ParameterList([torch.linspace(0.5, 1, width), torch.linspace(1, 0.5, width)])
        self.between = nn.Sequential(nn.ReLU(inplace=True), nn.Dropout(0.2))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norms[0](x)
        kept = x.new_empty(len(x), 1, 1).bernoulli_(0.7) if self.training else 1
        x = x + kept * self.scales[0] * self.attention(h, h, h)[0]
        return x + self.scales[1] * self.back(self.between(self.forth(self.norms[1](x))))


class ViT(nn.Module):
    """A small vision transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.head = nn.Conv2d(1, 6, 2, 2), nn.Linear(6, 4)
        self.token, self.places = nn.Parameter(randn(1, 1, 6)), nn.Parameter(randn(1, 5, 6, seed=1))
        self.dropout, self.blocks = nn.Dropout(0.1), nn.ModuleList([Block(), Block()])

    def embedded(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).mT
        return self.dropout(torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedded(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])


class Language(nn.Module):
    """A language model that looks words up in the table that scores them, at places that all examples share."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({"words": nn.Embedding(7, 6), "places": nn.Embedding(5, 6)})
        self.block, self.head = Block(), nn.Linear(6, 7, bias=False)
        self.head.weight = self.parts["words"].weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.parts["words"](x) + self.parts["places"](torch.arange(x.shape[1]))))


class Hyper(nn.Module):
    """Its weights are made by a network, from a code for each layer."""

    def __init__(self) -> None:
        super().__init__()
        self.codes, self.maker, self.head = nn.Parameter(randn(2, 3)), nn.Linear(3, 16), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.maker(self.codes):
            x = torch.tanh(F.linear(x, weight.view(4, 4)))
        return self.head(x)


class Started(nn.Module):
    """A recurrent layer that learns what it starts from, and a normalisation without parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.memory = nn.Parameter(randn(1, 1, 5)), nn.GRU(3, 5, batch_first=True)
        self.norm, self.head = nn.BatchNorm1d(5, affine=False), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.memory(x, self.start.repeat(1, len(x), 1))[1][0]))


class Read(nn.Module):
    """Reads the weight of a layer that it never calls."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.layer = nn.Parameter(randn(5)), nn.Linear(5, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(x * self.gain), self.layer.weight)


class Twice(nn.Module):
    """Calls a module with a parameter of its own twice."""

    def __init__(self) -> None:
        super().__init__()
        self.read = Read()

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        return (self.read(x) - self.read(other)).abs()


class Bare(nn.Module):
    """A parameter of its own, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.dropout = nn.Parameter(randn(5)), nn.Dropout(0.1)

    def forward(self, x):
        return self.dropout(x * self.scale)


class Positive(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.exp()


def parametrized() -> nn.Module:
    network = ViT()
    parametrize.register_parametrization(network, "places", Positive())
    return network


def words(n: int = 4) -> Tensor:
    return torch.randint(7, (n, 5), generator=torch.Generator().manual_seed(0))


CASES = {
    "class token": (ViT, lambda: randn(4, 1, 4, 4)),
    "parametrized": (parametrized, lambda: randn(4, 1, 4, 4)),
    "shared table": (Language, words),
    "hypernetwork": (Hyper, lambda: randn(6, 4)),
    "weights read": (Read, lambda: randn(6, 5)),
    "dropout alone": (Bare, lambda: randn(6, 5)),
    "called twice": (Twice, lambda: (randn(6, 5), randn(6, 5, seed=1))),
}


class Table(nn.Module):
    """Gives a parameter, whatever the examples."""

    def __init__(self) -> None:
        super().__init__()
        self.values, self.nothing = nn.Parameter(randn(5)), nn.Identity()

    def forward(self, *given):
        return self.nothing(self.values.exp())


class Looked(nn.Module):
    """Multiplies what it is given by what a module of its own says without being given anything."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = Table(), nn.Linear(5, 4)

    def forward(self, x):
        return self.layer(x * self.table())


CASES["without input"] = (Looked, lambda: randn(6, 5))


@pytest.mark.parametrize("training", [True, False], ids=["training", "eval"])
@pytest.mark.parametrize("case", CASES)
def test_squares_are_those_of_each_example_by_itself(case, training):
    make, inputs = CASES[case][0], CASES[case][1]()
    module = make().double().train(training)
    targets = randn(*call(module, inputs).shape, seed=9)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        mean, square = gradient_moments(module, loss, (inputs, targets))
        torch.manual_seed(3)
        expected = by_example(module, inputs, targets)
    close(mean, expected[0])
    close(square, expected[1])


def test_a_recurrent_layer_and_a_batchnorm_without_parameters():
    module = Started().double().eval()
    inputs, targets = randn(6, 4, 3), randn(6, 4, seed=9)
    close(squared_gradients(module, loss, (inputs, targets)), by_example(module, inputs, targets)[1])


def test_batch_statistics_are_those_of_the_whole_batch():
    """The mean of the parts is the batch's gradient, and running statistics move as in any pass."""
    module = Started().double()
    inputs, targets = randn(6, 4, 3), randn(6, 4, seed=9)
    mean, _ = gradient_moments(module, loss, (inputs, targets))
    assert module.norm.num_batches_tracked == 0
    other = copy.deepcopy(module)
    loss(module(inputs), targets).backward()
    close(mean, {name: p.grad for name, p in module.named_parameters()})
    with capture(other):
        other(inputs)
    torch.testing.assert_close(dict(other.named_buffers()), dict(module.named_buffers()))


def test_random_numbers_and_gradients_are_those_of_an_ordinary_pass():
    module, inputs, targets = ViT().double(), randn(4, 1, 4, 4), randn(4, 4, seed=9)
    states = []
    with torch.random.fork_rng():
        for run in (lambda: gradient_moments(module, loss, (inputs, targets)), lambda: module(inputs)):
            torch.manual_seed(3)
            run()
            states.append(torch.get_rng_state())
    assert torch.equal(*states)


class Outer(nn.Module):
    """A layer without a rule, and a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.bias = nn.Bilinear(5, 5, 4), nn.Parameter(randn(4))

    def forward(self, x):
        return self.layer(x, x.flip(1)) + self.bias


def test_layers_without_a_rule_are_taken_along_without_a_word():
    module, inputs, targets = Outer().double(), randn(6, 5), randn(6, 4, seed=9)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PosterityWarning)
        found = squared_gradients(module, loss, (inputs, targets))
    close(found, by_example(module, inputs, targets)[1])


class Again(nn.Module):
    """Calls a normalisation twice."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(5).double()

    def forward(self, x):
        return self.norm(self.norm(x).square())


@pytest.mark.parametrize("make", [Bare, Again])
def test_two_batches_in_one_pass_are_refused(make):
    module, (x, y) = make(), (randn(6, 5), randn(6, 5))
    watch = SquareCapture(module)
    with watch.on():
        loss(module(x), y).backward()
        outputs = module(x + 1)
        with pytest.raises(PosterityError, match="a second batch came in one pass"):
            loss(outputs, y).backward()


def test_layers_beside_a_class_token_have_their_kronecker_factors():
    module = ViT().double().eval()
    batch, likelihood = Batch(randn(5, 1, 4, 4), torch.arange(5) % 4), Categorical()
    found = kronecker(module, likelihood, batch)
    squares = diagonal(module, likelihood, batch)
    for p in (module.token, module.places, *(p for block in module.blocks for p in block.scales)):
        p.requires_grad_(False)
    expected = kronecker(module, likelihood, batch)
    assert [block.weight for block in found.blocks] == [block.weight for block in expected.blocks]
    for block, other in zip(found.blocks, expected.blocks, strict=True):
        torch.testing.assert_close((block.input, block.output), (other.input, other.output))
    torch.testing.assert_close(found.diagonal, {name: squares[name] for name in found.diagonal})
    assert found.diagonal.keys() - expected.diagonal.keys() >= {"token", "places", "blocks.0.scales.0"}


def test_the_diagonal_is_that_of_the_full_matrix():
    module, batch, likelihood = Language().double().eval(), Batch(words(), torch.arange(4)), Categorical()
    module.register_forward_hook(lambda module, args, output: output.mean(1))
    squares = diagonal(module, likelihood, batch)
    whole = full(module, likelihood, batch)
    close(squares, Layout.of(squares).unflatten(whole.diagonal()))


class Scaled(nn.Module):
    """A scale before a layer, with something else besides."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.layer = nn.Parameter(randn(5)), nn.Linear(5, 4)
        self.register_buffer("average", torch.zeros(5))


class Mixing(Scaled):
    def forward(self, x):
        return self.layer((x - x.mean(0)) * self.scale)


class Branching(Scaled):
    def forward(self, x):
        return self.layer(x * self.scale if float(x.detach().sum()) > 0 else x)


class Averaging(Scaled):
    def forward(self, x):
        self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
        return self.layer(x * self.scale)


class Checkpointed(Scaled):
    def forward(self, x):
        return checkpoint(self.layer, x * self.scale, use_reentrant=False)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (Mixing, "mixes examples"),
        (Branching, r"a forward that torch cannot follow by example .*: give the parameters to a small module"),
        (Averaging, r"\(it keeps statistics of its batches\): give the parameters to a small module"),
        (Checkpointed, r"cannot follow by example \(checkpoints are taken\): give the parameters"),
        (Table, "was called without a tensor"),
    ],
)
def test_what_cannot_be_run_by_example_is_refused(make, sentence):
    with pytest.raises(PosterityError, match=sentence):
        squared_gradients(make().double(), loss, (randn(6, 5), randn(6, 4)) if make is not Table else ((), randn(5)))


def test_nothing_waits_for_the_garbage_collector():
    module = Language().double()
    watch = SquareCapture(module)
    with watch.on():
        outputs = module(words())
        outputs.sum().backward()
    dead = weakref.ref(watch), weakref.ref(outputs)
    gc.disable()
    try:
        del watch, outputs
        assert [ref() for ref in dead] == [None, None]
    finally:
        gc.enable()


def test_a_look_at_a_network_does_not_import_a_compiler():
    """It takes a second."""
    code = (
        "import sys, torch; from posterity.curvature import squared_gradients; "
        "net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)); x = torch.ones(3, 2); "
        "squared_gradients(net, lambda f, y: (f - y).square().mean(), (x, x)); sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class Prototypes(nn.Module):
    """A linear map of three vectors that all examples share."""

    def __init__(self) -> None:
        super().__init__()
        self.map, self.head = nn.Linear(2, 5), nn.Linear(5, 4)
        self.register_buffer("prototypes", randn(3, 2))

    def forward(self, x):
        return self.head((x.unsqueeze(1) * self.map(self.prototypes)).tanh().sum(1))


@pytest.mark.parametrize("batch", [1, 2, 3, 4])
def test_as_many_shared_rows_as_examples_are_not_taken_for_examples(batch):
    """Squares of three examples were 34% off, and those of more refused."""
    module, inputs, targets = Prototypes().double(), randn(batch, 5), randn(batch, 4, seed=9)
    close(squared_gradients(module, loss, (inputs, targets)), by_example(module, inputs, targets)[1])


class Stateful(nn.Module):
    """Made for batches of eight, as its state is."""

    def __init__(self) -> None:
        super().__init__()
        self.memory, self.head = nn.GRU(3, 5, batch_first=True), nn.Linear(5, 4)
        self.register_buffer("state", randn(1, 8, 5))

    def forward(self, x):
        return self.head(self.memory(x, self.state)[0][:, -1])


def test_a_network_made_for_one_size_of_batch():
    module, inputs, targets = Stateful().double(), randn(8, 4, 3), randn(8, 4, seed=9)
    close(squared_gradients(module, loss, (inputs, targets)), by_example(module, inputs, targets)[1])
