"""Change points are known, and so is every density: what does the detector find?

Tasks are Gaussians with means of their own in 20 dimensions; the model of a task is exact from its first batch on.
"""

import itertools
import math

import pytest
import torch

from posterity.continual import Detector, Typicality
from posterity.types import PosterityError

SIZE, BATCH, SEGMENT = 20, 32, 100


class Stream:
    """Batches of tasks, each with its own mean; a model that knows the tasks that it was told of."""

    def __init__(self, seed, tasks, spread):
        self.generator = torch.Generator().manual_seed(seed)
        self.means = spread * torch.randn(max(tasks) + 1, SIZE, generator=self.generator, dtype=torch.float64)
        self.known = []

    def batch(self, task, size=BATCH):
        return self.means[task] + torch.randn(size, SIZE, generator=self.generator, dtype=torch.float64)

    def statistics(self, x):
        """log p(x | t), log p_Z(f(x) | t) and log |det|, with a map that stretches by the first coordinate."""
        latent = [
            -0.5 * ((x - self.means[t]).square().sum(1) + SIZE * math.log(2 * math.pi)).mean() for t in self.known
        ]
        change = 0.1 * x[:, 0].mean()
        return torch.stack([torch.stack([value + change, value, change]) for value in latent])


def follow(seed, tasks, spread=1.0, sizes=None, **config):
    """Verdicts and truth, batch by batch."""
    stream, detector = Stream(seed, tasks, spread), Detector(Typicality(**config))
    verdicts, truth = [], [task for task in tasks for _ in range(SEGMENT)]
    for step, task in enumerate(truth):
        x = stream.batch(task, BATCH if sizes is None else sizes[step % len(sizes)])
        seen = stream.statistics(x) if stream.known else torch.empty(0, 3)
        found = detector.judge(seen, len(x))
        verdicts.append(found)
        if found is None:
            continue
        if found == len(stream.known):
            stream.known.append(task)
        detector.observe(found, stream.statistics(x)[found], len(x))
    return verdicts, truth, stream.known


def turns(verdicts):
    """Steps at which the detector says that the task has changed."""
    settled = [(step, found) for step, found in enumerate(verdicts) if found is not None]
    return [step for (_, before), (step, after) in itertools.pairwise(settled) if after != before]


@pytest.mark.parametrize("seed", range(10))
def test_every_change_is_found_within_two_batches(seed):
    verdicts, _, known = follow(seed, [0, 1, 2, 3, 4])
    assert turns(verdicts) == [SEGMENT * i + 1 for i in range(1, 5)]  # the second batch of each
    assert known == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("seed", range(5))
def test_tasks_that_come_back_are_recognised(seed):
    verdicts, truth, known = follow(seed, [0, 1, 0, 2, 1, 0])
    assert known == [0, 1, 2]
    settled = [(found, task) for found, task in zip(verdicts, truth, strict=True) if found is not None]
    assert settled and all(found == task for found, task in settled)


def test_false_alarms_are_under_one_percent():
    alarms = aside = total = 0
    for seed in range(10, 15):
        verdicts, _, known = follow(seed, [0] * 5)
        alarms, aside, total = alarms + len(known) - 1, aside + verdicts.count(None), total + len(verdicts)
    # 5 stds about a line through 20 to 30 points: Student's t of 18 to 28 degrees, under 3e-4 for the three together.
    assert alarms == 0 and aside / total < 0.002


def test_distances_are_from_the_point_that_the_line_reaches_next_by_hand():
    detector = Detector(Typicality(window=4, warm_up=4))
    for step, rest in enumerate((1.0, -1.0, -1.0, 1.0)):  # about the line 1 + step/2, which no other fits better
        detector.observe(0, torch.full((3,), 1 + step / 2 + rest).double(), 8)
    std = math.sqrt(4 / (4 - 2))  # four squares of 1, two numbers fitted
    seen = torch.tensor([[3.0, 3 - std, 3 + 2 * std]]).double()
    assert detector.distances(seen, 8) == pytest.approx([2.0])
    assert detector.distances(seen, 2) == pytest.approx([1.0])  # a quarter of the examples, twice the spread


def test_small_last_batches_are_no_new_tasks():
    verdicts, _, known = follow(3, [0, 0, 0], sizes=[BATCH] * 9 + [2])
    assert known == [0] and verdicts.count(None) == 0


def test_too_likely_is_not_typical_either():
    """The same mean with a tenth of the spread: every example is more probable than any that was seen."""
    stream, detector = Stream(0, [0], 0.5), Detector(Typicality(confirm=1))
    stream.known = [0]
    for _ in range(40):
        x = stream.batch(0)
        assert detector.judge(stream.statistics(x), BATCH) == 0
        detector.observe(0, stream.statistics(x)[0], BATCH)
    calm = stream.means[0] + 0.1 * (stream.batch(0) - stream.means[0])
    seen = stream.statistics(calm)
    assert seen[0, 0] > detector.windows[0][:, 0].max()
    assert detector.judge(seen, BATCH) == 1


def test_state_is_complete():
    def run(interrupted):
        stream, detector = Stream(5, [0, 1], 1.0), Detector(Typicality())
        verdicts = []
        for step in range(2 * SEGMENT):
            if interrupted and step % 7 == 0:
                state, detector = detector.state_dict(), Detector(Typicality())
                detector.load_state_dict(state)
            x = stream.batch(step // SEGMENT)
            found = detector.judge(stream.statistics(x) if stream.known else torch.empty(0, 3), BATCH)
            verdicts.append(found)
            if found is not None:
                if found == len(stream.known):
                    stream.known.append(found)
                detector.observe(found, stream.statistics(x)[found], BATCH)
        return verdicts

    assert run(True) == run(False)


def test_bad_settings_are_refused():
    for bad in ({"threshold": 0.0}, {"warm_up": 2}, {"warm_up": 40, "window": 30}, {"confirm": 0}):
        with pytest.raises(PosterityError):
            Typicality(**bad)
