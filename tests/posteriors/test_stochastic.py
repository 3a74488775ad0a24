"""Monte Carlo dropout leaves on all the dropout that the network was trained with."""

import copy

import pytest
import torch
from torch import nn

import posterity as pst
from posterity.posteriors import Stochastic
from posterity.posteriors.stochastic import with_dropout
from posterity.probability.likelihoods import Categorical
from posterity.random import global_seed
from posterity.types import PosterityError


class Encoder(nn.Module):
    """In eval mode torch runs these layers in one fused kernel, without their dropout."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True)
        self.layers, self.out = nn.TransformerEncoder(layer, 2), nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.layers(x)[:, 0])


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(8, 8, 2, dropout=0.5, batch_first=True)
        self.drop, self.out = nn.Dropout(0.3), nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.drop(self.rnn(x)[0][:, -1]))


class Inside(nn.Module):
    """Dropout between recurrent layers, and no layer of dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.GRU(8, 8, 2, dropout=0.5, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1])


@pytest.mark.parametrize("make", [Encoder, Recurrent, Inside])
def test_a_draw_is_a_pass_in_train_mode(make):
    torch.manual_seed(0)
    net, x = make(), torch.randn(5, 4, 8)
    draw = next(iter(Stochastic(copy.deepcopy(net), Categorical()).draws(1, torch.Generator().manual_seed(1))))
    seed = int(torch.randint(2**62, (), generator=torch.Generator().manual_seed(1)))
    with torch.no_grad(), global_seed(seed, torch.device("cpu")):
        expected = net.train()(x)
    with torch.no_grad():
        torch.testing.assert_close(draw(x), expected)
        assert not torch.allclose(expected, net.eval()(x), atol=1e-2)


def test_dropout_inside_layers_alone_is_dropout(tmp_path):
    """It was refused as none."""
    data, training = (torch.randn(16, 4, 8), torch.arange(16) % 3), pst.Training(progress=False)
    posterior = pst.fit(Inside(), pst.Dropout(), data, epochs=1, training=training)
    assert (posterior.predict(data[0]).epistemic > 0).all()
    pst.save(posterior, tmp_path / "dropout.safetensors")
    again = pst.load(tmp_path / "dropout.safetensors", Inside())
    assert torch.equal(again.predict(data[0]).probs, posterior.predict(data[0]).probs)
    with pytest.raises(PosterityError, match="no dropout layer"):  # whose rate that could be
        pst.fit(Inside(), pst.Dropout(rate=0.2), data, epochs=1, training=training)


def test_dropout_before_a_layer_of_tokens_or_keywords_is_refused():
    tokens = with_dropout(nn.Embedding(5, 3), {"": 0.5})
    with pytest.raises(PosterityError, match="Embedding, whose first input"):
        tokens(torch.arange(5))
    with pytest.raises(PosterityError, match="by keyword"):
        with_dropout(nn.Linear(4, 3), {"": 0.5})(input=torch.randn(2, 4))
