"""How speed is measured here: contestants in interleaved rounds, medians, and ratios to the first of them.

A machine that is busy for a second hits all contestants alike, and a median does not see it. On the CPU what counts is
the CPU time of one thread; on the GPU the time between two events on its stream.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

Work = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """One contestant: seconds a call, its ratio to the first one, and the peak of memory beyond what was held."""

    seconds: float
    ratio: float
    peak_bytes: int | None = None


@dataclass
class Bench:
    """Measures, prints and keeps results.

    Attributes:
        device: Where the work is done.
        rounds: How often each contestant is measured.
        results: Rows by case and contestant.
        figures: Numbers that are no ratios of times.
        broken: Why a contestant of a case could not be measured.
    """

    device: torch.device
    rounds: int = 21
    results: dict[str, dict[str, Row]] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    broken: dict[str, dict[str, str]] = field(default_factory=dict)

    def compare(
        self,
        case: str,
        contestants: dict[str, Work],
        calls: int = 1,
        limits: dict[str, float] | None = None,
        memory: bool = False,
    ) -> None:
        """Time contestants against each other.

        Args:
            case: What is compared.
            contestants: By name; ratios are to the first.
            calls: In one measurement.
            limits: What ratio each must not exceed.
            memory: On the CPU, too, the peak of memory, by a call more that is not timed.
        """
        for work in contestants.values():
            work()
        seconds: dict[str, list[float]] = {name: [] for name in contestants}
        peaks: dict[str, int | None] = dict.fromkeys(contestants)
        for _ in range(self.rounds):
            for name, work in contestants.items():
                taken, peaks[name] = self.time(work, calls)
                seconds[name].append(taken)
        if memory and self.device.type != "cuda":
            peaks = {name: peak_on_cpu(work) for name, work in contestants.items()}
        self.add(case, seconds, peaks, limits)

    def add(
        self,
        case: str,
        seconds: dict[str, list[float]],
        peaks: dict[str, int | None] | None = None,
        limits: dict[str, float] | None = None,
    ) -> None:
        """Keep and print the medians of what was timed."""
        medians = {name: statistics.median(taken) for name, taken in seconds.items()}
        first = next(iter(medians.values()))
        self.results[case] = {n: Row(m, m / first, (peaks or {}).get(n)) for n, m in medians.items()}
        print(f"{case} ({self.device})")
        for name, row in self.results[case].items():
            limit = (limits or {}).get(name)
            verdict = "" if limit is None else f"   must be ≤ {limit}: {'yes' if row.ratio <= limit else 'NO'}"
            memory = "" if row.peak_bytes is None else f"   {row.peak_bytes / 2**20:8.1f} MiB"
            print(f"  {name:<34}{1e3 * row.seconds:10.3f} ms   {row.ratio:6.3f}×{memory}{verdict}", flush=True)

    def fail(self, case: str, name: str, error: Exception) -> None:
        """Keep and print why a contestant does not run."""
        first = str(error).strip().splitlines()[:1]
        self.broken.setdefault(case, {})[name] = ": ".join([type(error).__name__, *first])
        print(f"  {name}: broken, {self.broken[case][name]}", flush=True)

    def figure(self, name: str, value: float, unit: str, limit: float | None = None) -> None:
        """Keep and print one number that is no ratio of times."""
        self.figures[name] = value
        verdict = "" if limit is None else f"   must be ≤ {limit}: {'yes' if value <= limit else 'NO'}"
        print(f"{name}: {value:.4g} {unit}{verdict}", flush=True)

    def time(self, work: Work, calls: int = 1) -> tuple[float, int | None]:
        """Seconds of one call, and the peak of GPU memory that it needed beyond what was held before."""
        if self.device.type != "cuda":
            start = time.process_time()
            for _ in range(calls):
                work()
            return (time.process_time() - start) / calls, None
        torch.cuda.reset_peak_memory_stats(self.device)
        held = torch.cuda.memory_allocated(self.device)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize(self.device)
        begin.record()
        for _ in range(calls):
            work()
        end.record()
        torch.cuda.synchronize(self.device)
        peak = torch.cuda.max_memory_allocated(self.device) - held
        return begin.elapsed_time(end) / 1e3 / calls, peak

    def write(self, path: Path) -> None:
        """All results as JSON, with what they were measured on."""
        where = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else platform.machine()
        cases = {case: {name: asdict(row) for name, row in rows.items()} for case, rows in self.results.items()}
        content = {"device": str(self.device), "machine": where, "torch": torch.__version__, "rounds": self.rounds}
        found = {"cases": cases, "figures": self.figures, "broken": self.broken}
        path.write_text(json.dumps({**content, "date": datetime.date.today().isoformat(), **found}, indent=1))


def now(device: torch.device) -> float:
    """Seconds: of CPU time on a CPU, on a GPU by the clock, when all its work is done."""
    if device.type != "cuda":
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


def peak_on_cpu(work: Work) -> int:
    """The most bytes that a call holds beyond what was held before, of those that torch allocates."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as seen:
        work()
    assert seen.profiler is not None
    steps = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    sizes = [event.nbytes() for event in sorted(steps, key=lambda event: event.start_ns())]
    return max(itertools.accumulate(sizes, initial=0))


def run(description: str | None, parts: dict[str, Callable[[Bench], None]]) -> None:
    """The command line of a benchmark: ``--device``, ``--rounds``, ``--only``, ``--out``."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--only", nargs="*", choices=list(parts), default=list(parts))
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    bench = Bench(torch.device(options.device), options.rounds)
    for name in options.only:
        parts[name](bench)
        if options.out is not None:
            bench.write(options.out)  # what there is, should the next part fail
