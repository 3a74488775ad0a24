"""What a user writes, for the type checker alone: ``make lint`` sees that it knows every name."""

from torch import Tensor, nn

import posterity as pst


def probabilities(network: nn.Module, train: tuple[Tensor, Tensor], inputs: Tensor) -> list[Tensor]:
    """A classification."""
    p = pst.fit(network, pst.SWAG(rank=10), train, epochs=30).predict(inputs, draws=32)
    return [p.probs, p.label, p.entropy, p.aleatoric, p.epistemic]


def band(network: nn.Module, train: tuple[Tensor, Tensor], inputs: Tensor) -> list[Tensor]:
    """A regression."""
    p = pst.fit(network, pst.MeanField(), train, likelihood=pst.likelihoods.Gaussian()).predict(inputs)
    low, high = p.interval(0.9)
    return [p.mean, p.std, low, high]
