import itertools
import math

import pytest
import torch
from torch import nn

import posterity as pst
from posterity.evaluation.diagnostics import (
    Diagnostics,
    agreement,
    diagnose,
    diversity,
    effective_sample_size,
    split_rhat,
)
from posterity.posteriors import Empirical, Mixture
from posterity.types import PosterityError


def autoregressive(chains, samples, correlation, seed=0):
    """Stationary AR(1) chains of variance 1."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(samples, chains, 40, generator=generator, dtype=torch.float64)
    states = [noise[0]]
    for step in noise[1:]:
        states.append(correlation * states[-1] + math.sqrt(1 - correlation**2) * step)
    return torch.stack(states, dim=1)


def test_rhat_by_hand():
    """Two chains of four, halves (1,3), (2,4), (5,7), (6,8): W = 2, variance of the means 20/3."""
    chains = torch.tensor([[1.0, 3.0, 2.0, 4.0], [5.0, 7.0, 6.0, 8.0]], dtype=torch.float64)
    means = torch.tensor([2.0, 3.0, 6.0, 7.0], dtype=torch.float64)
    expected = math.sqrt((0.5 * 2 + float(means.var())) / 2)
    assert float(split_rhat(chains)) == pytest.approx(expected)


def test_rhat_is_one_for_agreeing_chains_and_finds_shift_and_trend():
    agreeing = autoregressive(4, 2000, 0.3)
    assert float((split_rhat(agreeing) - 1).abs().max()) < 0.01
    shifted = agreeing + torch.arange(4.0)[:, None, None]  # means 0, 1, 2, 3
    assert float(split_rhat(shifted).median()) == pytest.approx(math.sqrt(1 + 10 / 7), rel=0.05)
    trending = agreeing[:1] + torch.linspace(0, 4, 2000)[None, :, None]  # one chain, halves 2 apart
    assert float(split_rhat(trending).min()) > 1.2


def test_rhat_of_chains_that_never_move():
    stuck = torch.zeros(2, 10, 2)
    stuck[1, :, 1] = 1.0
    assert split_rhat(stuck).tolist() == [1.0, math.inf]


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_effective_sample_size_of_autoregressive_chains(correlation):
    """AR(1): ESS = n (1 − ρ)/(1 + ρ)."""
    chains = autoregressive(4, 4000, correlation)
    expected = 16_000 * (1 - correlation) / (1 + correlation)
    assert float(effective_sample_size(chains).mean()) == pytest.approx(expected, rel=0.08)


def test_effective_sample_size_by_the_book():
    """Gelman et al. 11.5, lag by lag, with Geyer's sum over pairs that are positive and made to fall."""
    chains = autoregressive(2, 60, 0.9)[..., 0]
    halves = torch.cat([chains[:, :30], chains[:, 30:]])
    centred, n = halves - halves.mean(1, keepdim=True), halves.shape[1]
    within = halves.var(1).mean()
    pooled = (n - 1) / n * within + halves.mean(1).var()
    rho = [1.0]
    for lag in range(1, n):
        covariance = (centred[:, lag:] * centred[:, : n - lag]).sum(1).mean() / (n - 1)
        rho.append(float(1 - (within - covariance) / pooled))
    pairs = [rho[2 * k] + rho[2 * k + 1] for k in range(n // 2)]
    total, least = 0.0, math.inf
    for pair in pairs:
        if pair <= 0:
            break
        least = min(least, pair)
        total += least
    assert any(later > earlier > 0 for earlier, later in itertools.pairwise(pairs))  # falling is not for nothing
    assert float(effective_sample_size(chains)) == pytest.approx(halves.numel() / (2 * total - 1))


def test_effective_sample_size_of_disagreeing_chains_is_small():
    chains = autoregressive(4, 500, 0.0) + 5 * torch.arange(4.0)[:, None, None]
    assert float(effective_sample_size(chains).max()) < 20


def test_effective_sample_size_of_chains_that_never_move():
    stuck = torch.zeros(2, 10, 2, dtype=torch.float64)
    stuck[1, :, 1] = 1.0
    together, apart = effective_sample_size(stuck).tolist()
    assert together == 20 and apart < 3


def test_the_worst_trace_comes_first_and_the_middle_one_beside_it():
    predicted = autoregressive(1, 100, 0.7)[..., None]
    rhat, ess, found = split_rhat(predicted), effective_sample_size(predicted), agreement(predicted, classifies=True)
    assert found.rhat == (float(rhat.max()), float(rhat.median()))
    assert found.ess == (float(ess.min()), float(ess.median()))
    assert found.disagreement == found.label_disagreement == 0  # of one chain with itself


def chain(offset, samples=200, spread=0.3, seed=0):
    """A chain over a linear classifier whose samples scatter around ±offset."""
    generator = torch.Generator().manual_seed(seed)
    module = nn.Linear(2, 2, bias=False, dtype=torch.float64)
    centre = offset * torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    points = [
        {"weight": centre + spread * torch.randn(2, 2, generator=generator, dtype=torch.float64)}
        for _ in range(samples)
    ]
    return Empirical(module, pst.likelihoods.Categorical(), points)


X = torch.randn(50, 2, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
DATA = (X, (X[:, 0] < 0).long())


def test_agreeing_chains_are_left_in_peace():
    found = diagnose(Mixture([chain(1.0, seed=s) for s in range(3)]), DATA)
    assert (found.chains, found.samples) == (3, 200)
    assert found.rhat[0] < 1.05
    assert found.ess[1] == pytest.approx(600, rel=0.2)
    assert found.disagreement < 0.03
    assert found.label_disagreement < 0.05
    assert found.symptoms() == []


def test_chains_in_opposite_modes_are_named():
    found = diagnose(Mixture([chain(2.0), chain(-2.0)]), DATA)
    assert found.rhat[0] > 2
    assert found.label_disagreement == pytest.approx(1.0)
    assert found.disagreement > 0.5
    assert any("chains disagree" in line for line in found.symptoms())


def test_one_chain_that_moves_is_said_to_differ_from_itself():
    moving = Diagnostics(1, 20, rhat=(1.6, 1.2), ess=(3.0, 5.0), disagreement=0.0, label_disagreement=0.0)
    halves, worth = moving.symptoms()
    assert halves.startswith("the halves of the chain disagree (split-R̂ up to 1.60)")
    assert worth.startswith("the chain is worth 3 samples")


def test_each_chain_must_be_worth_ten_samples():
    """As Gelman et al. ask: four chains need forty, one needs ten."""
    for chains, ess, symptoms in ((4, 39.0, 1), (4, 41.0, 0), (1, 11.0, 0), (1, 9.0, 1)):
        found = Diagnostics(chains, 100, rhat=(1.0, 1.0), ess=(ess, ess), disagreement=0.0, label_disagreement=0.0)
        assert len(found.symptoms()) == symptoms


def test_total_variation_by_hand():
    """Two single-minded chains: probabilities (σ(2x), 1 − σ(2x)) and its mirror image are |2σ − 1| apart."""
    found = diagnose(Mixture([chain(1.0, spread=0.0), chain(-1.0, spread=0.0)]), DATA)
    assert found.disagreement == pytest.approx(float((2 * torch.sigmoid(2 * X[:, 0]) - 1).abs().mean()))


def test_numbers_have_no_labels():
    module = nn.Linear(2, 1, bias=False, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    points = [{"weight": torch.randn(1, 2, generator=generator, dtype=torch.float64)} for _ in range(100)]
    chains = [Empirical(module, pst.likelihoods.Gaussian(std=1.0), points[i::2]) for i in range(2)]
    found = diagnose(Mixture(chains), (X, X[:, :1]))
    assert found.label_disagreement is None
    assert found.disagreement < 0.5


def test_diversity_by_hand():
    """Three networks on four inputs: always 0, always 1, and the sign of the first feature."""
    module = nn.Linear(2, 2, dtype=torch.float64)
    x = torch.tensor([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    truth = torch.tensor([0, 0, 0, 1])
    zero = torch.zeros(2, 2, dtype=torch.float64)
    sign = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    points = [
        {"weight": zero, "bias": torch.tensor([5.0, -5.0], dtype=torch.float64)},
        {"weight": zero, "bias": torch.tensor([-5.0, 5.0], dtype=torch.float64)},
        {"weight": sign, "bias": torch.zeros(2, dtype=torch.float64)},
    ]
    found = diversity(Empirical(module, pst.likelihoods.Categorical(), points), (x, truth))
    assert found.accuracy.tolist() == [0.75, 0.25, 1.0]
    assert found.disagreement.tolist() == [(1 + 0.25) / 2, (1 + 0.75) / 2, (0.25 + 0.75) / 2]
    assert found.normalised.tolist()[0] == pytest.approx(0.625 / 0.25)


def test_bad_input_is_refused():
    with pytest.raises(PosterityError, match="at least four samples"):
        diagnose(Mixture([chain(1.0, samples=3)]), DATA)
    with pytest.raises(PosterityError, match="at least 4 samples"):
        split_rhat(torch.zeros(2, 3))
    with pytest.raises(PosterityError, match="at least two draws"):
        diversity(chain(1.0, samples=1), DATA)


def test_diversity_counts_every_word_and_takes_yes_and_no_in_either_shape():
    """Two networks that say 0 and 1 of all: of three words in four they are right and wrong in turn."""
    x = torch.zeros(2, 2, 3, dtype=torch.float64)
    zero = torch.zeros(2, 3, dtype=torch.float64)
    biases = [torch.tensor(b, dtype=torch.float64) for b in ([5.0, -5.0], [-5.0, 5.0])]
    words = Empirical(
        nn.Linear(3, 2).double(), pst.likelihoods.Categorical(), [{"weight": zero, "bias": b} for b in biases]
    )
    found = diversity(words, (x, torch.tensor([[0, 0], [0, 1]])))
    assert found.accuracy.tolist() == [0.75, 0.25] and found.disagreement.tolist() == [1.0, 1.0]
    points = [{"weight": zero[:1], "bias": b[1:]} for b in biases]
    logit = Empirical(nn.Linear(3, 1).double(), pst.likelihoods.Bernoulli(), points)
    for shape in ((4,), (4, 1)):
        found = diversity(logit, (x.view(4, 3), torch.tensor([0, 0, 0, 1]).view(shape)))
        assert found.accuracy.tolist() == [0.75, 0.25]


def test_chains_over_words_and_over_several_numbers():
    """Each word's classes are compared by themselves, and each number: they were as one row, of total variation 1.0."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(10, 5, 4, generator=generator, dtype=torch.float64)

    def chains(outputs, likelihood):
        module = nn.Linear(4, outputs, bias=False).double()
        draws = torch.randn(2, 6, outputs, 4, generator=generator, dtype=torch.float64)
        return Mixture([Empirical(module, likelihood, [{"weight": w} for w in chain]) for chain in draws]), draws

    words, _ = chains(3, pst.likelihoods.Categorical())
    each = diagnose(words, (x.flatten(0, 1), torch.zeros(50).long()))
    assert diagnose(words, (x, torch.zeros(10, 5).long())) == each
    numbers, draws = chains(3, pst.likelihoods.Gaussian(std=1.0))
    means = torch.einsum("csoi,ni->csno", draws, x[:, 0])
    apart = (means[0].mean(0) - means[1].mean(0)).abs() / means.std((0, 1))
    assert diagnose(numbers, (x[:, 0], torch.zeros(10, 3))).disagreement == pytest.approx(float(apart.mean()))
