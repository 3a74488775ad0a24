"""Many runs side by side on one machine: each is a process of its own, started when what it waits for is over.

    python -m benchmarks.quality.farm --out DIR --workers 6 --seconds 960      # everything.py's jobs
    python -m benchmarks.quality.farm --out DIR --list
    python -m benchmarks.quality.farm --out DIR --missing                      # what the results page still lacks

With MPS (``nvidia-cuda-mps-control -d``) the kernels of several processes run at the same time. A few are enough: on an
H200 twenty small networks together did 2.3 times the work of one, each at a tenth of its speed. Jobs are started in the
order of the list, the most valuable first. When the time is over what still runs is killed; every run has written what
it found so far.
Standard output goes to DIR/logs, what was started and how it ended to DIR/farm.log; a second call with the same folder
leaves out what that says is done, and so does ``--but`` by name.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.quality.everything import Job, jobs, missing

PATIENCE = 10.0
"""Seconds that a process has to end by itself."""


@dataclass
class Running:
    """A job under way."""

    job: Job
    process: subprocess.Popen[bytes]
    begun: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begun

    def end(self) -> None:
        """Interrupt it, and kill it only if that does not help: under MPS a killed process takes the others with it."""
        os.killpg(self.process.pid, signal.SIGINT)
        try:
            self.process.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class Farm:
    """The jobs of one call."""

    def __init__(self, todo: Sequence[Job], out: Path, workers: int) -> None:
        self.waiting, self.running, self.out, self.workers = list(todo), list[Running](), out, workers
        self.begun = time.monotonic()
        (out / "logs").mkdir(parents=True, exist_ok=True)

    def log(self, *words: object) -> None:
        with (self.out / "farm.log").open("a") as file:
            print(f"{time.monotonic() - self.begun:7.1f}", *words, file=file)

    def open_groups(self) -> set[str]:
        """Groups that have jobs left."""
        return {job.group for job in self.waiting} | {each.job.group for each in self.running}

    def ready(self) -> Iterator[Job]:
        """Jobs that can start, in order, as long as there is room.

        A large one whose turn it is keeps the places that are free: smaller ones behind it would always take them.
        """
        free = self.workers - sum(each.job.workers for each in self.running)
        unfinished = self.open_groups()
        for job in list(self.waiting):
            if unfinished & set(job.after):
                continue
            if min(job.workers, self.workers) > free:
                return
            free -= job.workers
            self.waiting.remove(job)
            yield job

    def start(self, job: Job) -> None:
        self.log("start", job.name)
        with (self.out / "logs" / f"{job.name}.log").open("w") as log:
            command = ["bash", "-c", job.command(sys.executable, self.out)]
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        self.running.append(Running(job, process))

    def collect(self) -> None:
        """Take note of what has ended, and end what takes too long."""
        for each in list(self.running):
            if each.process.poll() is None and each.seconds > each.job.seconds:
                each.end()
            if each.process.poll() is not None:
                self.running.remove(each)
                self.log("done" if each.process.returncode == 0 else "FAILED", f"{each.seconds:.0f} s", each.job.name)

    def run(self, seconds: float) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it, and its jobs would
        while (self.waiting or self.running) and time.monotonic() - self.begun < seconds:
            for job in self.ready():
                self.start(job)
            time.sleep(0.5)
            self.collect()
        for each in self.running:
            each.end()
            self.log("killed", f"{each.seconds:.0f} s", each.job.name)
        for job in self.waiting:
            self.log("never started", job.name)


def done(out: Path) -> set[str]:
    """Names of the jobs that an earlier call has finished."""
    log = out / "farm.log"
    lines = log.read_text().splitlines() if log.exists() else []
    return {line.split()[-1] for line in lines if line.split()[1] == "done"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=900)
    parser.add_argument("--only", nargs="*", help="groups; those that they wait for count as done")
    parser.add_argument("--but", nargs="*", default=[], help="not the jobs of these names")
    parser.add_argument("--missing", action="store_true", help="only runs that benchmarks/results does not have")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    over = {*options.but, *done(options.out)}
    every = missing() if options.missing else jobs()
    todo = [job for job in every if job.name not in over and (not options.only or job.group in options.only)]
    if options.list:
        for job in todo:
            print(f"{job.name}: {job.command('python', options.out)}")
        return
    Farm(todo, options.out, options.workers).run(options.seconds)


if __name__ == "__main__":
    main()
