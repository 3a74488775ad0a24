"""How fast networks are, side by side: one thread, interleaved rounds, medians.

The candidates take turns within each round, so that a busy machine slows all of them alike, and the ratio between
them stays honest. On the CPU the clock is CPU time, which waiting for a core does not count.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from posterity import calling
from posterity.types import Inputs

__all__ = ["one_thread", "ratio", "rows", "timings"]

_ROUNDS, _FEWEST, _CALLS = 25, 5, 20
_LONGEST = 3.0
"""Seconds that a large network may take in all; it is timed in fewer rounds, and needs no more."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Run on a single CPU thread, and go back to as many as there were."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def rows(example: Inputs, count: int) -> Inputs:
    """An example repeated, or cut, to a batch of ``count``."""
    index = torch.arange(count) % calling.num_examples(example)
    return calling.map_inputs(example, lambda tensor: tensor[index.to(tensor.device)])


def timings(networks: Mapping[str, nn.Module], inputs: Inputs, budget: float = 0.2) -> dict[str, list[float]]:
    """Seconds of one call of each network, round by round.

    Args:
        networks: What to time, by name; each in evaluation mode on the inputs' device.
        inputs: What to call them with.
        budget: About how many seconds each network may use in all.
    """
    device = calling.tensors_of(inputs)[0].device
    seconds: dict[str, list[float]] = {name: [] for name in networks}
    with one_thread(), torch.no_grad():
        # The first calls choose kernels and fill caches; the second tell how often there is time to call.
        first = [_time(network, inputs, 1, device) for _ in range(2) for network in networks.values()]
        slowest = max(*first[len(networks) :], 1e-6)
        rounds = max(_FEWEST, min(_ROUNDS, round(_LONGEST / slowest)))
        calls = max(1, min(_CALLS, round(budget / rounds / slowest)))
        for _ in range(rounds):
            for name, network in networks.items():
                seconds[name].append(_time(network, inputs, calls, device))
    return seconds


def ratio(a: list[float], b: list[float]) -> float:
    """a's time in units of b's: the median over rounds, in each of which the machine was as busy for both."""
    return statistics.median(left / right for left, right in zip(a, b, strict=True))


def _time(network: nn.Module, inputs: Inputs, calls: int, device: torch.device) -> float:
    """Mean seconds of a few calls."""
    on_gpu = device.type == "cuda"
    clock = time.perf_counter if on_gpu else time.process_time
    if on_gpu:
        torch.cuda.synchronize(device)
    start = clock()
    for _ in range(calls):
        calling.call(network, inputs)
    if on_gpu:
        torch.cuda.synchronize(device)
    return (clock() - start) / calls
