"""What every optimizer that samples weights owes: draws inside, means outside, and averages over passes and ranks."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from posterity.optim import IVON, OGN
from posterity.types import PosterityError
from tests.optim.sampling import INPUTS, OPTIMIZERS, TARGETS, every, every_noisy, network, passes, steps, weights


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
