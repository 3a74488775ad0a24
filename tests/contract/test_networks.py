"""Every method on networks that others stumble over: recurrent layers, attention, shared parameters, loops."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import posterity as pst
from tests.contract.cases import METHOD_CASES, MethodCase

WORDS, CLASSES = 9, 3


class Recurrent(nn.Module):
    """Two layers in both directions, and dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.drop, self.out = nn.Embedding(WORDS, 4), nn.Dropout(0.1), nn.Linear(6, CLASSES)
        self.lstm = nn.LSTM(4, 3, 2, bidirectional=True, dropout=0.1, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.drop(self.lstm(self.words(tokens))[0].mean(1)))


class Attention(nn.Module):
    """Two layers of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(WORDS, 4), nn.Linear(4, CLASSES)
        layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.encoder(self.words(tokens)).mean(1))


class Tied(nn.Module):
    """Words are looked up in the table by which they are scored."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.scores = nn.Embedding(WORDS, 4), nn.Linear(4, WORDS, bias=False)
        self.scores.weight = self.words.weight
        self.drop, self.out = nn.Dropout(0.0), nn.Linear(WORDS, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.drop(torch.tanh(self.scores(self.words(tokens).mean(1)))))


class Loop(nn.Module):
    """A cell at every step, and a layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.cell = nn.Embedding(WORDS, 4), nn.GRUCell(4, 4)
        self.drop, self.twice, self.out = nn.Dropout(0.1), nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        state = None
        for word in self.words(tokens).unbind(1):
            state = self.cell(word, state)
        return self.out(self.drop(self.twice(torch.tanh(self.twice(state)))))


class Quiet(nn.Module):
    """A mean of words, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.drop, self.out = nn.Embedding(WORDS, 4), nn.Dropout(0.1), nn.Linear(4, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.drop(torch.tanh(self.words(tokens)).mean(1)))


class Keeping(Quiet):
    """The same, and what it has computed stays on it to be looked at, as attention maps often do."""

    def forward(self, tokens: Tensor) -> Tensor:
        seen = torch.tanh(self.words(tokens))
        self.seen, self.more = seen, {"means": [seen.mean(1)]}
        return self.out(self.drop(self.more["means"][0]))


class TwoNames(nn.Module):
    """One layer, which the network knows as two."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.drop, self.out = nn.Embedding(WORDS, 4), nn.Dropout(0.1), nn.Linear(4, CLASSES)
        self.first = self.second = nn.Linear(4, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.drop(self.second(torch.tanh(self.first(self.words(tokens).mean(1))))))


NETWORKS = [Recurrent, Attention, Tied, Loop, TwoNames, Keeping]
KRONECKER = ("kfac", "noisy-kfac", "laplace")  # their factors of a layer that is used twice are refused: below
PAIRS = [
    (case, net)
    for case in METHOD_CASES
    for net in NETWORKS
    if net not in (Loop, TwoNames) or case.name not in KRONECKER
]


def own(case: MethodCase) -> pst.Method:
    """The case's method; the networks have the dropout that it would insert."""
    return pst.Dropout() if case.name == "dropout" else case.method


@pytest.mark.filterwarnings("ignore::posterity.types.PosterityWarning")
@pytest.mark.parametrize(("case", "network"), PAIRS, ids=[f"{case.name}-{net.__name__}" for case, net in PAIRS])
def test_fit_predict_save_load(case, network, tmp_path):
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, WORDS, (32, 5), generator=generator)
    targets = tokens[:, 0] % CLASSES
    torch.manual_seed(0)
    module = network().double()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    training = pst.Training(batch_size=8, **case.training)
    posterior = pst.fit(module, own(case), (tokens, targets), epochs=3, training=training)
    held = {name: p.clone() for name, p in posterior.module.named_parameters()}
    probs = posterior.predict(tokens, draws=4).probs
    for draw in posterior.draws(2):
        draw(tokens)
    assert all(torch.equal(p, held[name]) for name, p in posterior.module.named_parameters())
    assert probs.isfinite().all() and torch.allclose(probs.sum(1), torch.ones(32, dtype=probs.dtype))
    pst.save(posterior, tmp_path / "posterior.safetensors")
    again = pst.load(tmp_path / "posterior.safetensors", network().double())
    assert torch.equal(again.predict(tokens, draws=4).probs, probs)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize("method", [pst.KFAC(), pst.NoisyKFAC(), pst.Laplace()], ids=lambda m: type(m).__name__)
def test_kronecker_factors_of_a_layer_used_twice_are_refused(method):
    tokens = torch.randint(0, WORDS, (8, 5))
    with pytest.raises(pst.PosterityError, match=r"twice .* used twice in one pass"):
        pst.fit(Loop(), method, (tokens, tokens[:, 0] % CLASSES), epochs=1)


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("method", [pst.MAP(), pst.MeanField(), pst.Laplace()], ids=lambda m: type(m).__name__)
def test_what_a_network_keeps_of_a_pass_changes_nothing(method, members):
    """Such networks were trained to the end, and then could not be copied into a posterior."""
    tokens = torch.randint(0, WORDS, (32, 5), generator=torch.Generator().manual_seed(0))
    targets, probs = tokens[:, 0] % CLASSES, []
    for network in (Quiet, Keeping):
        torch.manual_seed(0)
        module = network().double()
        module(tokens)  # trained before: what is kept has a graph
        posterior = pst.fit(module, method, (tokens, targets), epochs=2, members=members)
        posterior.predict(tokens, draws=4)
        probs.append(posterior.to(dtype=torch.float64).predict(tokens, draws=4).probs)
    assert torch.equal(*probs)
