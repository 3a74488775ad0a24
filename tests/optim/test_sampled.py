"""What every optimizer that samples weights owes: restoring, averaging, complete state, and plain refusals."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from posterity.optim import IVON, KFAC, OGN, VOGN, NoisyKFAC
from posterity.types import PosterityError

INPUTS = torch.randn(12, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
TARGETS = torch.arange(12) % 3


def network() -> nn.Module:
    net = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.LayerNorm(6), nn.Linear(6, 3)).double()
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_((p.dim() == 1) + 0.3 * torch.randn(p.shape, generator=g, dtype=p.dtype))
    return net


OPTIMIZERS = {
    "ivon": lambda net, **kw: IVON(net.named_parameters(), **{"lr": 0.1, "num_data": 100, "beta2": 0.9, **kw}),
    "ivon, squared": lambda net, **kw: IVON(
        net.named_parameters(), **{"lr": 0.1, "num_data": 100, "beta2": 0.9, "hessian": "squared", **kw}
    ),
    "vogn": lambda net, **kw: VOGN(net, **{"lr": 0.01, "num_data": 100, "beta2": 0.9, **kw}),
    "ogn": lambda net, **kw: OGN(net, **{"lr": 0.01, "num_data": 100, "beta2": 0.9, **kw}),
    "kfac": lambda net, **kw: KFAC(net, **{"lr": 0.01, "num_data": 100, "refresh": 2, **kw}),
    "noisy kfac": lambda net, **kw: NoisyKFAC(net, **{"lr": 0.01, "num_data": 100, "refresh": 2, **kw}),
}
every = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
NOISY = {name: make for name, make in OPTIMIZERS.items() if name not in ("ogn", "kfac")}
every_noisy = pytest.mark.parametrize("make", NOISY.values(), ids=NOISY.keys())


def weights(net: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def passes(net: nn.Module, optimizer, count: int = 1, rows: slice = slice(None), weight: float = 1.0) -> None:
    for _ in range(count):
        with optimizer.sampled_weights(weight):
            (weight * F.cross_entropy(net(INPUTS[rows]), TARGETS[rows])).backward()


def steps(net: nn.Module, optimizer, count: int) -> None:
    for _ in range(count):
        passes(net, optimizer)
        optimizer.step()


@every
def test_weights_are_the_means_outside_and_gradients_are_cleared(make):
    net = network()
    optimizer = make(net)
    steps(net, optimizer, 2)
    before = weights(net)
    passes(net, optimizer)
    assert torch.equal(weights(net), before)
    assert all(p.grad is None for p in net.parameters())


@every_noisy
def test_weights_are_draws_inside(make):
    net = network()
    optimizer = make(net)
    steps(net, optimizer, 1)
    before = weights(net)
    inside = []
    for _ in range(2):
        with optimizer.sampled_weights():
            inside.append(weights(net))
            F.cross_entropy(net(INPUTS), TARGETS).backward()
    assert (inside[0] != before).all() and (inside[1] != inside[0]).all()


@every
def test_an_exception_inside_leaves_the_means_and_discards_the_step(make):
    net, other = network(), network()
    optimizer, twin = make(net), make(other)
    steps(net, optimizer, 2)
    steps(other, twin, 2)
    before, state = weights(net), copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ZeroDivisionError), optimizer.sampled_weights():
        F.cross_entropy(net(INPUTS), TARGETS).backward()
        raise ZeroDivisionError
    assert torch.equal(weights(net), before)
    assert all(p.grad is None for p in net.parameters())
    assert all("forward" not in vars(m) for m in net.modules())
    with pytest.raises(PosterityError, match="no gradient"):
        optimizer.step()
    if "generator" in state:  # as if the failed pass had not been: same noise, same step
        optimizer._generator.set_state(state["generator"])
    steps(net, optimizer, 1)
    steps(other, twin, 1)
    assert torch.equal(weights(net), weights(other))


@every
def test_state_dict_resumes_to_the_same_bits(make):
    net = network()
    optimizer = make(net)
    steps(net, optimizer, 3)
    saved = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
    steps(net, optimizer, 3)
    other = network()
    resumed = make(other)
    other.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    steps(other, resumed, 3)
    assert torch.equal(weights(other), weights(net))
    assert resumed.param_groups[0]["step"] == 6  # which the bias correction needs


@every
def test_state_is_in_torchs_own_state_dict(make):
    net = network()
    optimizer = make(net)
    steps(net, optimizer, 1)
    state = optimizer.state_dict()
    assert set(state) <= {"state", "param_groups", "generator"}
    momentum = torch.cat([entry["momentum"].flatten() for entry in state["state"].values()])
    assert momentum.numel() == weights(net).numel() and (momentum != 0).any()


@every
def test_ranks_with_averaged_statistics_are_one_process_with_as_many_draws(make):
    """Two ranks, each with its own draw and its own half of the batch, against both passes in one process."""
    halves = [slice(0, 6), slice(6, 12)]
    nets = [network(), network(), network()]
    generators = [torch.Generator() for _ in nets]
    first, second, alone = optimizers = [make(net, generator=g) for net, g in zip(nets, generators, strict=True)]
    for step in range(3):
        for rank, rows in enumerate(halves):
            seed = 10 * step + rank
            generators[rank].manual_seed(seed)
            passes(nets[rank], optimizers[rank], rows=rows)
            generators[2].manual_seed(seed)
            passes(nets[2], alone, rows=rows)
        for a, b in zip(first.statistics(), second.statistics(), strict=True):
            a.copy_((a + b) / 2)
            b.copy_(a)
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(weights(nets[0]), weights(nets[1]), rtol=0, atol=0)
    torch.testing.assert_close(weights(nets[0]), weights(nets[2]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("make", [OPTIMIZERS["ogn"], OPTIMIZERS["kfac"]], ids=["ogn", "kfac"])
def test_ragged_micro_batches_equal_one_batch(make):
    whole, parts = network(), network()
    one, several = make(whole), make(parts)
    for _ in range(3):
        passes(whole, one)
        one.step()
        for rows in (slice(0, 2), slice(2, 7), slice(7, 12)):
            passes(parts, several, rows=rows, weight=(rows.stop - rows.start) * 3 / 12)
        several.step()
    if isinstance(one, OGN):
        torch.testing.assert_close(weights(parts), weights(whole), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(
        torch.cat([s["curvature"].flatten() for s in several.state.values()]),
        torch.cat([s["curvature"].flatten() for s in one.state.values()]),
        rtol=1e-6,
        atol=1e-12,
    )
    for name in ("input_factor", "output_factor"):
        for p, q in zip(whole.parameters(), parts.parameters(), strict=True):
            if name in one.state[p]:
                torch.testing.assert_close(several.state[q][name], one.state[p][name], rtol=1e-6, atol=1e-9)


@every
def test_statistics_do_not_change_when_asked_again(make):
    net = network()
    optimizer = make(net)
    passes(net, optimizer, 3)
    first = [t.clone() for t in optimizer.statistics()]
    for a, b in zip(first, optimizer.statistics(), strict=True):
        assert torch.equal(a, b)


@every_noisy
def test_the_default_generator_gives_every_rank_the_same_noise(make):
    drawn = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        net = network()
        optimizer = make(net)
        steps(net, optimizer, 2)
        with optimizer.sampled_weights():
            drawn.append(weights(net))
            F.cross_entropy(net(INPUTS), TARGETS).backward()
    assert torch.equal(*drawn)


@every
def test_torchs_learning_rate_schedules_work(make):
    net = network()
    optimizer = make(net)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.0)
    steps(net, optimizer, 1)
    schedule.step()
    before = weights(net)
    steps(net, optimizer, 1)
    assert torch.equal(weights(net), before)


@every
def test_a_prior_mean_by_name_pulls_towards_it(make):
    net = network()
    anchor = {name: torch.full_like(p, 2.0) for name, p in net.named_parameters()}
    optimizer = make(net, prior_mean=anchor, prior_precision=1e6, beta1=0.0)
    before = weights(net)
    steps(net, optimizer, 1)
    moved = weights(net) - before
    assert (torch.sign(moved) == torch.sign(2.0 - before)).all()


@pytest.mark.parametrize("name", ["ivon", "vogn"])
def test_a_prior_precision_by_name_sets_the_variance_of_each_weight(name):
    extra = {"init_precision": 1.0} if name == "vogn" else {"hess_init": 1.0}
    extra |= {"damping": 0.0} if name == "vogn" else {}

    def noise(net: nn.Module, optimizer) -> dict[str, Tensor]:
        before = {key: p.detach().clone() for key, p in net.named_parameters()}
        with optimizer.sampled_weights():
            moved = {key: p.detach() - before[key] for key, p in net.named_parameters()}
            F.cross_entropy(net(INPUTS), TARGETS).backward()
        return moved

    net, same = network(), network()
    precision = {key: 10.0 if key.endswith("bias") else torch.full_like(p, 1e4) for key, p in net.named_parameters()}
    optimizer = OPTIMIZERS[name](net, prior_precision=precision, **extra)
    by_name = noise(net, optimizer)
    shared = noise(same, OPTIMIZERS[name](same, prior_precision=30.0, **extra))  # the same generator, so the same noise
    for key, moved in by_name.items():
        ratio = math.sqrt((100 + 30) / (100 + (10.0 if key.endswith("bias") else 1e4)))
        torch.testing.assert_close(moved, shared[key] * ratio, rtol=1e-8, atol=1e-12)
    saved = copy.deepcopy(optimizer.state_dict())
    other = network()
    resumed = OPTIMIZERS[name](other, prior_precision=precision, **extra)
    resumed.load_state_dict(saved)
    assert torch.equal(resumed.state[other[0].weight]["prior_precision"], torch.full((6, 5), 1e4).double())


def test_frozen_parameters_are_left_alone():
    for make in OPTIMIZERS.values():
        net = network()
        net[0].weight.requires_grad_(False)
        before = net[0].weight.clone()
        optimizer = make(net)
        steps(net, optimizer, 2)
        assert torch.equal(net[0].weight, before)


@every
def test_bad_use_is_refused_in_one_sentence(make):
    net = network()
    for num_data in (0, None, -3):
        with pytest.raises(PosterityError, match="num_data"):
            make(net, num_data=num_data)
    with pytest.raises(PosterityError, match="beta1"):
        make(net, beta1=1.5)
    with pytest.raises(PosterityError, match="prior_precision"):
        make(net, prior_precision=0.0)
    with pytest.raises(PosterityError, match="lr"):
        make(net, lr=-1.0)
    with pytest.raises(PosterityError, match="float32"):
        make(network().to(torch.bfloat16))
    optimizer = make(net)
    with pytest.raises(PosterityError, match="there is no gradient"):
        optimizer.step()
    with pytest.raises(PosterityError, match="no gradient arrived"), optimizer.sampled_weights():
        pass
    with pytest.raises(PosterityError, match="again"), optimizer.sampled_weights(), optimizer.sampled_weights():
        pass
    with pytest.raises(PosterityError, match="no gradient arrived"):
        optimizer.step(lambda: None)


@every
def test_a_closure_is_run_with_sampled_weights(make):
    by_hand, by_closure = network(), network()
    first, second = make(by_hand), make(by_closure)
    steps(by_hand, first, 3)

    def closure() -> Tensor:
        loss = F.cross_entropy(by_closure(INPUTS), TARGETS)
        loss.backward()
        return loss

    losses = [second.step(closure) for _ in range(3)]
    torch.testing.assert_close(weights(by_closure), weights(by_hand), rtol=0, atol=0)
    assert all(loss.item() > 0 for loss in losses)


@every
def test_a_gradient_scaler_is_refused(make):
    net = network().float()
    optimizer = make(net)
    scaler = torch.amp.GradScaler("cpu")
    with optimizer.sampled_weights():
        scaler.scale(F.cross_entropy(net(INPUTS.float()), TARGETS)).backward()
    before = weights(net)
    with pytest.raises(PosterityError, match="GradScaler"):
        scaler.step(optimizer)
    assert torch.equal(weights(net), before)


@pytest.mark.parametrize("name", ["vogn", "ogn", "kfac", "noisy kfac"])
def test_eval_mode_is_refused_where_it_matters(name):
    net = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).double()
    optimizer = OPTIMIZERS[name](net)
    net.eval()
    with pytest.raises(PosterityError, match="eval mode"), optimizer.sampled_weights():
        F.cross_entropy(net(INPUTS), TARGETS).backward()
    plain = network().eval()  # nothing in it depends on the mode
    steps(plain, OPTIMIZERS[name](plain), 1)


@pytest.mark.parametrize("name", ["vogn", "noisy kfac"])
def test_batchnorm_stays_deterministic_and_without_prior(name):
    net = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).double()
    optimizer = OPTIMIZERS[name](net, prior_precision=1e6)
    steps(net, optimizer, 2)
    scale = net[1].weight.detach().clone()
    first = net[0].weight.detach().clone()
    with optimizer.sampled_weights():
        assert torch.equal(net[1].weight, scale) and not torch.equal(net[0].weight, first)
        F.cross_entropy(net(INPUTS), TARGETS).backward()
    assert (scale - 1).abs().max() < 0.5  # the prior of precision 1e6 pulls it not to zero
    assert optimizer.param_groups[1]["prior_precision"] == 0


def test_vogn_can_sample_batchnorm_when_asked():
    net = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6)).double()
    optimizer = VOGN(net, 0.01, 100, init_precision=1.0, stochastic_batchnorm=True)
    with optimizer.sampled_weights():
        assert (net[1].weight != 1).all()
        F.cross_entropy(net(INPUTS), TARGETS).backward()


def test_a_parameter_used_outside_its_layer_is_refused():
    class Borrowed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 3).double()

        def forward(self, x):
            return x @ self.layer.weight.T

    for name in ("vogn", "kfac"):
        net = Borrowed()
        with pytest.raises(PosterityError, match="outside its forward"):
            passes(net, OPTIMIZERS[name](net))


@every
@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_changes_nothing(make, reentrant):
    plain, saving = network(), network()
    first, second = make(plain), make(saving)
    steps(plain, first, 3)
    inputs = INPUTS.clone().requires_grad_()  # a re-entrant checkpoint has gradients of its inputs alone
    for _ in range(3):
        with second.sampled_weights():
            hidden = checkpoint(saving[:3], inputs, use_reentrant=reentrant)
            F.cross_entropy(saving[3](hidden), TARGETS).backward()
        second.step()
    torch.testing.assert_close(weights(saving), weights(plain))


def test_noise_that_cannot_be_drawn_leaves_all_groups_as_they_were():
    net = network()
    before = weights(net)
    optimizer = IVON([{"params": net[0].parameters()}, {"params": net[3].parameters()}], lr=0.1, num_data=100)
    optimizer.param_groups[0]["temperature"] = -1.0  # as a schedule might, by mistake
    with pytest.raises(ValueError), optimizer.sampled_weights():
        pass
    assert torch.equal(weights(net), before)


@every
def test_a_posterior_is_of_the_trained_network_at_its_means(make):
    net = network()
    optimizer = make(net)
    steps(net, optimizer, 1)
    with pytest.raises(PosterityError, match="not a copy"):
        optimizer.posterior(copy.deepcopy(net))
    with pytest.raises(PosterityError, match="leave it first"), optimizer.sampled_weights():
        optimizer.posterior(net)


@every
def test_a_step_inside_sampled_weights_is_refused_instead_of_lost(make):
    net = network()
    optimizer = make(net)
    passes(net, optimizer)
    with pytest.raises(PosterityError, match="leave it first"), optimizer.sampled_weights():
        F.cross_entropy(net(INPUTS), TARGETS).backward()
        optimizer.step()


@every
def test_parameters_frozen_or_unfrozen_later_are_refused(make):
    net = network()
    optimizer = make(net)
    steps(net, optimizer, 1)
    before = weights(net)
    net[0].requires_grad_(False)
    with pytest.raises(PosterityError, match="frozen after"), optimizer.sampled_weights():
        F.cross_entropy(net(INPUTS), TARGETS).backward()
    assert torch.equal(weights(net), before)
    optimizer = make(net)
    net[0].requires_grad_(True)
    with pytest.raises(PosterityError, match="trained now"):
        passes(net, optimizer)


def test_parameters_unfrozen_later_are_trained_in_a_group_of_their_own():
    net, whole = network(), network()
    net[0].requires_grad_(False)
    optimizer = IVON(net.parameters(), lr=0.1, num_data=100)
    net[0].requires_grad_(True)
    optimizer.add_param_group({"params": net[0].parameters()})
    groups = [{"params": whole[2:].parameters()}, {"params": whole[0].parameters()}]
    reference = IVON(groups, lr=0.1, num_data=100)
    steps(net, optimizer, 3)
    steps(whole, reference, 3)
    assert torch.equal(weights(net), weights(whole))
    for name in ("vogn", "kfac"):
        with pytest.raises(PosterityError, match="watches its module"):
            OPTIMIZERS[name](net).add_param_group({"params": [nn.Parameter(torch.zeros(2).double())]})


@every
def test_zero_grad_forgets_a_pass_that_went_wrong(make):
    net, other = network(), network()
    first, second = make(net), make(other)
    with first.sampled_weights():
        first.zero_grad()  # inside, as closures do, it forgets nothing
        (math.nan * F.cross_entropy(net(INPUTS), TARGETS)).backward()
    first.zero_grad()
    passes(other, second)  # draws the same noise
    second.zero_grad()
    steps(net, first, 1)
    steps(other, second, 1)
    assert weights(net).isfinite().all()
    assert torch.equal(weights(net), weights(other))


@every
def test_copies_are_refused_with_the_way_to_make_them(make):
    net = network()
    optimizer = make(net)
    steps(net, optimizer, 1)
    with pytest.raises(PosterityError, match="load_state_dict"):
        copy.deepcopy((net, optimizer))
    other = copy.deepcopy(net)
    copied = make(other)
    copied.load_state_dict(optimizer.state_dict())
    steps(net, optimizer, 2)
    steps(other, copied, 2)
    assert torch.equal(weights(net), weights(other))


def test_sparse_gradients_give_ivon_the_same_steps():
    tables = [nn.Embedding(5, 3, sparse=sparse) for sparse in (False, True)]
    tables[1].load_state_dict(tables[0].state_dict())
    for table in tables:
        optimizer = IVON(table.parameters(), lr=0.1, num_data=100)
        for _ in range(3):
            with optimizer.sampled_weights():
                table(torch.tensor([1, 1, 4])).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(tables[1].weight, tables[0].weight)
