"""Kill at any moment and resume: the same bits as no interruption. Here with dropout and a shuffling loader."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import posterity as pst
from posterity.files import read_state

SCRIPT = """
import sys, time, torch
from torch import nn
import posterity as pst

file, slow = sys.argv[1], float(sys.argv[2])
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
x = torch.randn(120, 4)
y = x[:, :3].argmax(1)

class Pause(nn.Module):
    def forward(self, x):
        time.sleep(slow)
        return x

net.append(Pause())
training = pst.Training(batch_size=20, checkpoint=file, checkpoint_every=1, resume=True, progress=False)
q = pst.fit(net, pst.Dropout(), (x, y), epochs=5, training=training)
pst.save(q, file + ".done")
"""


def run(path, slow=0.0):
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(path), str(slow)], env={**os.environ, "OMP_NUM_THREADS": "1"}
    )


def weights(path):
    return read_state(f"{path}.done", "posterior")["state"]["module"]


def killed_and_resumed(tmp_path, kills):
    assert run(tmp_path / "whole").wait() == 0
    chooser = random.Random(0)
    for _ in range(kills):
        process = run(tmp_path / "killed", slow=0.02)
        step = read_state(tmp_path / "killed", "checkpoint")["run"]["step"] if (tmp_path / "killed").exists() else 0
        while process.poll() is None and _step(tmp_path / "killed") <= step:  # at least one step further each time
            time.sleep(0.01)
        time.sleep(chooser.uniform(0, 0.03))
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert run(tmp_path / "killed").wait() == 0
    torch.testing.assert_close(weights(tmp_path / "killed"), weights(tmp_path / "whole"), rtol=0, atol=0)


def _step(path):
    return read_state(path, "checkpoint")["run"]["step"] if path.exists() else 0


def test_two_kills_leave_the_same_bits(tmp_path):
    killed_and_resumed(tmp_path, 2)


@pytest.mark.slow
def test_twenty_kills_leave_the_same_bits(tmp_path):
    killed_and_resumed(tmp_path, 20)


class StopError(Exception):
    pass


class StopAt:
    """Stops in the middle of an epoch, through the data."""

    def __init__(self, loader, batches):
        self.loader, self.left, self.dataset = loader, batches, loader.dataset

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        for batch in self.loader:
            self.left -= 1
            if self.left < 0:
                raise StopError
            yield batch


@pytest.mark.parametrize("stop", [3, 7, 11, 14])
def test_a_shuffling_loader_resumes_in_the_middle_of_an_epoch(tmp_path, stop):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(50, 3, generator=generator)
    data = TensorDataset(x, x.argmax(1))
    net = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.2), nn.Linear(8, 3))

    def fit(loader, **options):
        training = pst.Training(progress=False, **options)
        posterior = pst.fit(net, pst.Dropout(), loader, epochs=4, training=training)
        return dict(posterior.module.state_dict()), posterior.history

    loader = DataLoader(data, batch_size=10, shuffle=True)
    whole = fit(loader)
    file = tmp_path / "run"
    with pytest.raises(StopError):
        fit(StopAt(loader, stop + 1), checkpoint=file, checkpoint_every=1)  # one batch is looked at before the fit
    assert read_state(file, "checkpoint")["run"]["step"] == stop
    torch.testing.assert_close(fit(loader, checkpoint=file, resume=True), whole, rtol=0, atol=0)


class StopEpoch:
    """Raises when a run has done so many epochs."""

    def __init__(self, epochs):
        self.epochs = epochs

    def on_epoch(self, run, figures):
        if run.epoch == self.epochs:
            raise StopError


def test_early_stopping_is_taken_up_again_with_the_best_so_far(tmp_path):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 4, generator=generator)
    y = (x[:, 0] + torch.randn(60, generator=generator) > 0).long()
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))

    def fit(**options):
        held = (x[30:], y[30:])
        training = pst.Training(batch_size=10, lr=0.1, validation=held, patience=5, progress=False, **options)
        return pst.fit(net, pst.MAP(), (x[:30], y[:30]), epochs=50, training=training)

    whole = fit()
    losses = [row["validation_loss"] for row in whole.history]
    best = losses.index(min(losses)) + 1
    assert best + 5 == len(losses) < 50
    file = tmp_path / "run"
    with pytest.raises(StopError):  # after the best epoch, which the checkpoint must remember
        fit(checkpoint=file, callbacks=(StopEpoch(best + 3),))
    again = fit(checkpoint=file, resume=True)
    assert [row["validation_loss"] for row in again.history] == losses
    torch.testing.assert_close(again.mean(), whole.mean(), rtol=0, atol=0)
    torch.testing.assert_close(fit(checkpoint=file, resume=True).mean(), whole.mean(), rtol=0, atol=0)  # it has ended


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    x = torch.randn(40, 3)
    options = {"checkpoint": tmp_path / "run", "progress": False}
    pst.fit(nn.Linear(3, 3), pst.MAP(), (x, x.argmax(1)), epochs=1, training=pst.Training(**options))
    with pytest.raises(pst.PosterityError, match="belongs to another run: its seed is 0"):
        pst.fit(
            nn.Linear(3, 3),
            pst.MAP(),
            (x, x.argmax(1)),
            epochs=1,
            seed=1,
            training=pst.Training(resume=True, **options),
        )


@pytest.mark.parametrize("method", [pst.MAP(), pst.IVON(), pst.SGLD(burn_in=0, thin=1)], ids=repr)
def test_a_lower_rate_is_taken_up_with_the_rest_of_the_run(tmp_path, method):
    """The way out of a loss that has become NaN: the last checkpoint was taken up, and the rate of before with it."""
    x = torch.randn(40, 3)
    schedule = {} if isinstance(method, pst.SGLD) else {"schedule": "constant"}
    options = {"batch_size": 10, "checkpoint": tmp_path / "run", "progress": False, **schedule}

    def fit(**more):
        return pst.fit(nn.Linear(3, 3), method, (x, x.argmax(1)), epochs=4, training=pst.Training(**options, **more))

    with pytest.raises(StopError):
        fit(lr=0.1, callbacks=(StopEpoch(3),))
    assert [row["lr"] for row in fit(lr=0.001, resume=True).history] == [0.1, 0.1, 0.001, 0.001]


def test_a_checkpoint_of_another_optimizer_is_refused(tmp_path):
    x = torch.randn(40, 3)
    options = {"checkpoint": tmp_path / "run", "progress": False}
    pst.fit(nn.Linear(3, 3), pst.MAP(), (x, x.argmax(1)), epochs=1, training=pst.Training(**options))
    with pytest.raises(pst.PosterityError, match=r"belongs to another run: its optimizer is .*adam"):
        training = pst.Training(resume=True, optimizer="sgd", **options)
        pst.fit(nn.Linear(3, 3), pst.MAP(), (x, x.argmax(1)), epochs=1, training=training)


def test_a_checkpoint_of_another_likelihood_is_refused(tmp_path):
    """The rest of the run would have been trained to another loss."""
    x, files = torch.randn(40, 3), {"checkpoint": tmp_path / "run", "progress": False}
    narrow, wide = pst.likelihoods.Gaussian(0.1), pst.likelihoods.Gaussian(1.0)
    pst.fit(nn.Linear(3, 3), pst.MAP(), (x, x), likelihood=narrow, epochs=1, training=pst.Training(**files))
    with pytest.raises(pst.PosterityError, match="belongs to another run: its likelihood is 'Gaussian"):
        training = pst.Training(resume=True, **files)
        pst.fit(nn.Linear(3, 3), pst.MAP(), (x, x), likelihood=wide, epochs=1, training=training)


@pytest.mark.parametrize("other", [{"module": nn.Linear(3, 3, bias=False)}, {"members": 3}], ids=["network", "members"])
def test_a_checkpoint_of_another_network_is_refused(tmp_path, other):
    x = torch.randn(40, 3)
    given = {"module": nn.Linear(3, 3), "method": pst.MAP(), "data": (x, x.argmax(1)), "epochs": 1, "members": 2}
    options = {"checkpoint": tmp_path / "run", "progress": False}
    pst.fit(**given, training=pst.Training(**options))
    with pytest.raises(pst.PosterityError, match="is of another network, or of other members"):
        pst.fit(**given | other, training=pst.Training(resume=True, **options))


class Counting(nn.Module):
    """Its outputs depend on how often it was called in training, which no state_dict holds."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, x):
        if self.training:
            self.calls = self.calls + 1
        return self.layer(x) * (1 + self.calls)


def test_buffers_that_no_state_dict_holds_are_taken_up_again(tmp_path):
    torch.manual_seed(0)
    net, x = Counting(), torch.randn(40, 2)

    class Stop:
        def on_epoch(self, run, figures):
            if run.epoch == 2:
                raise KeyboardInterrupt

    options = {"batch_size": 10, "checkpoint": tmp_path / "run", "progress": False}
    fitted = lambda **more: pst.fit(  # noqa: E731
        net, pst.MAP(), (x, (x[:, 0] > 0).long()), epochs=4, training=pst.Training(**options, **more)
    )
    whole = fitted()
    (tmp_path / "run").unlink()
    with pytest.raises(KeyboardInterrupt):
        fitted(callbacks=(Stop(),))
    torch.testing.assert_close(fitted(resume=True).predict(x).probs, whole.predict(x).probs, rtol=0, atol=0)
