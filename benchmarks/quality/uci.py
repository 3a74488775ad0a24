"""UCI regression: the 20 standard splits of six sets, eight methods, one hidden layer of 50 units.

    python -m benchmarks.quality.uci --out benchmarks/results/uci                   # all; skips what is there
    python -m benchmarks.quality.uci --sets boston --methods SWAG --steps 500 --out /tmp/uci

A fifth of each training split is held out; on it, for each split by itself, the noise and one of the method's settings
(prior, learning rate) are chosen by NLL. Then the network is trained anew on the whole training split and
judged on the test rows. No test row plays a part in any choice for its split.

A row with "noise by input" has a second output, the noise's std, as the published networks do; what is chosen is then
the unit in which that std starts, and a share of the steps.

All splits and all candidates for the noise are trained at once, as one network with a column for each: the columns
share nothing, the losses add up, and every method here but Laplace treats each weight by itself, so that a column is
trained as it would be alone.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import statistics
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import posterity as pst
from benchmarks.quality.uci_columns import Columns, Rows
from posterity import data
from posterity.evaluation.regression import ends, inside, log_density_each
from posterity.files import write_bytes
from posterity.prediction import Regression

DRAWS = 100
NOISE = {"boston": 0.3, "concrete": 0.3, "energy": 0.05, "naval": 0.02, "wine": 0.75, "yacht": 0.05}
"""About the std of what MAP leaves over on the held-out part, in units of the target's std; the ladder's middle."""
LADDER = torch.tensor([0.3, 0.44, 0.67, 1.0, 1.5, 2.25])
FIGURES = ("rmse", "nll", "coverage_90", "coverage_95")
SWAG_RATES = (1e-3, 3e-3, 1e-2)
SWAG_RATES_OF = {"naval": (3e-4, 1e-3, 3e-3)}  # around what held-out rows choose
SWAG_START_OF = {"naval": 0.9}  # half of the run is too short to learn naval, whose weights must be very exact
BY_INPUT_RATES = (1e-4, 3e-4, *SWAG_RATES)
STEPS = 8000
STEPS_OF = {"naval": 30000, "wine": 2000}  # naval's features are all but linear in each other; wine is mostly noise


BY_INPUT = ", noise by input"


@dataclass(frozen=True)
class Setting:
    """One candidate.

    Attributes:
        method: Whose posterior.
        lr: Its learning rate.
        members: How many restarts are averaged.
        likelihood: The noise, in a column's units.
        share: Of the set's steps.
    """

    method: pst.Method
    lr: float
    members: int = 1
    likelihood: pst.likelihoods.Likelihood = pst.likelihoods.Gaussian(std=1.0)
    share: float = 1.0

    def __str__(self) -> str:
        length = "" if self.share == 1 else f", {self.share:g} of the steps"
        return f"{self.method!r}, lr={self.lr:g}, members={self.members}{length}"

    @property
    def outputs(self) -> int:
        """Of a network: the mean, and the std where it depends on the input."""
        return 1 if isinstance(self.likelihood, pst.likelihoods.Gaussian) else 2


def settings(title: str, name: str) -> list[Setting]:
    """What the held-out part of a set chooses from; samplers' steps and curvatures scale with the noise variance."""
    noise, by_input = NOISE[name], title.endswith(BY_INPUT)
    swag_rates = BY_INPUT_RATES if by_input else SWAG_RATES_OF.get(name, SWAG_RATES)
    swag = pst.SWAG(rank=20, start=SWAG_START_OF.get(name, 0.5))
    priors = [pst.priors.Normal(std) for std in (0.4, 1.0)]
    curvature, least = noise**-2, (noise * float(LADDER[0])) ** 2  # the smallest noise has the steepest likelihood
    rows = {
        "MAP": [Setting(pst.MAP(prior=p), 0.01) for p in priors],
        "ensemble": [Setting(pst.MAP(prior=p), 0.01, members=5) for p in priors],
        "MeanField": [
            Setting(pst.MeanField(prior=p, init_std=0.05, estimator="reparameterised"), 0.01) for p in priors
        ],
        "SWAG": [Setting(replace(swag, prior=p, lr=lr), 0.01) for p in priors for lr in swag_rates],
        "VOGN": [Setting(pst.VOGN(prior=p, init_precision=curvature, beta2=0.999), 0.1) for p in priors],
        "IVON": [
            Setting(pst.IVON(prior=p, hess_init=curvature, beta2=0.999, rescale_lr=False, clip_radius=1.0), lr)
            for p in priors
            for lr in (0.05, 0.2)
        ],
        "Laplace": [Setting(pst.Laplace(prior=p), 0.01) for p in priors],
        "SGHMC": [Setting(pst.SGHMC(prior=p), lr * least) for p in priors for lr in (0.05, 0.15, 0.3)],
    }
    if not by_input:
        return rows[title]
    likelihood = pst.likelihoods.HeteroscedasticGaussian()  # it learns the rows by heart, and all the sooner its noise
    plain = rows[title.removesuffix(BY_INPUT)]
    return [replace(s, likelihood=likelihood, share=share) for s in plain for share in (0.25, 0.5)]


PLAIN = ("MAP", "ensemble", "MeanField", "SWAG", "VOGN", "IVON", "Laplace", "SGHMC")
METHODS = (*PLAIN, *(f"{title}{BY_INPUT}" for title in ("MAP", "ensemble", "SWAG")))


def stored(folder: Path, name: str, title: str) -> Path:
    """The file of a set and a method."""
    return folder / f"{name}--{title.replace(',', '').replace(' ', '-')}.json"


def predicted(setting: Setting, train: Rows, test: Rows, noise: Tensor, steps: int) -> Tensor:
    """Train a network for each split and noise; what its draws put out on test rows, in units of the noise.

    The shape is [draws, rows, splits, noises, outputs].
    """
    laplace = isinstance(setting.method, pst.Laplace)
    columns = noise.repeat(1, setting.members)  # members are columns, too
    training = pst.Training(
        batch_size=64, lr=setting.lr, steps=round(setting.share * steps), progress=False, device=str(noise.device)
    )
    q = pst.fit(
        lambda: Columns(train.x.shape[-1], columns, setting.outputs),
        pst.MAP(prior=setting.method.prior) if laplace else setting.method,
        (train.x, (train.y.unsqueeze(-1) / columns).flatten(1)),
        likelihood=setting.likelihood,
        training=training,
    )
    if laplace:
        return about_each(setting.method, q.module, train, test, noise)
    samples = q.predict(test.x, draws=DRAWS, keep_samples=True).samples.to(columns)
    own = samples.unflatten(-1, (setting.outputs, len(noise), setting.members, -1))
    return own.movedim(4, 1).flatten(0, 1).movedim(2, -1)


def about_each(method: pst.Laplace, columns: Columns, train: Rows, test: Rows, noise: Tensor) -> Tensor:
    """A Laplace posterior about each trained network, which is no matter of single weights."""
    found = []
    for column, std in enumerate(noise.flatten().tolist()):
        split = column // noise.shape[1]
        inputs, targets = train.x[:, split], train.y[:, split, None]
        own = method.post_hoc(columns.network(column), (inputs, targets), pst.likelihoods.Gaussian(std=std))
        found.append(own.predict(test.x[:, split], draws=DRAWS, keep_samples=True).samples.to(noise).squeeze(-1))
    return (torch.stack(found, -1).unflatten(-1, noise.shape) / noise).unsqueeze(-1)


def judged(draws: Tensor, y: Tensor, noise: Tensor, likelihood: pst.likelihoods.Likelihood) -> dict[str, Tensor]:
    """RMSE, NLL and coverage of each column, in standard units: [splits, noises]."""
    targets = (y.unsqueeze(-1) / noise).expand(draws.shape[1:-1])
    outputs = draws.flatten(1, 3)  # every cell an example
    means, known = likelihood.mean(outputs), likelihood.variance(outputs).mean(0)
    p = Regression(len(draws), None, 0.0, means.mean(0), known, means.var(0, correction=0), outputs, likelihood)
    density = log_density_each(p, targets.reshape(-1, 1)).view(targets.shape).mean(0)
    below, reached = (values.view(targets.shape) for values in ends(p, targets.reshape(-1, 1)))
    figures = {
        "rmse": ((p.mean.view(targets.shape) - targets) * noise).square().mean(0).sqrt().double().cpu(),
        "nll": noise.log().double().cpu() - density,
    }
    return figures | {f"coverage_{level}": inside((below, reached), level / 100).mean(0) for level in (90, 95)}


def one(name: str, title: str, splits: int, steps: int, device: torch.device) -> dict[str, Any]:
    """Choose by the held-out parts, train anew, and judge: all splits of one set with one method."""
    begun = seconds(device)
    tables = [data.load(f"uci-{name}", split=k) for k in range(splits)]
    candidates, ladder = settings(title, name), (NOISE[name] * LADDER).to(device).expand(splits, -1).contiguous()
    cost, tuned = held_out_costs(candidates, tables, ladder, steps), seconds(device)
    train, test = (Rows.of(pairs).to(device) for pairs in ([t.training() for t in tables], [t.test for t in tables]))
    figures = {figure: torch.full((splits,), math.nan, dtype=torch.float64) for figure in FIGURES}
    which, noise, left = torch.zeros(splits, dtype=torch.long), ladder[:, :1].clone(), torch.arange(splits)
    while len(left):
        best = cost[left].flatten(1).argmin(1)  # of [settings · rungs]
        which[left], noise[left] = best // len(LADDER), ladder[left].gather(1, (best % len(LADDER))[:, None].to(device))
        failed = []
        for index in which[left].unique():
            own = left[which[left] == index]
            draws = tried(candidates[index], train.some(own), test.some(own), noise[own], steps)
            if draws is None:  # it diverges on the whole training split: the next best setting
                cost[own, index] = math.inf
                failed.append(own)
                continue
            for figure, values in judged(draws, test.some(own).y, noise[own], candidates[index].likelihood).items():
                figures[figure][own] = values.squeeze(1)
        left = torch.cat(failed) if failed else left[:0]
        if len(left) and bool(cost[left].flatten(1).isinf().all(1).any()):
            raise pst.PosterityError(f"{title} diverges on {name} with every setting")
    unit = torch.stack([t.target_standardiser.std.squeeze() for t in tables]).double()  # type: ignore[union-attr]
    figures["rmse"], figures["nll"] = figures["rmse"] * unit, figures["nll"] + unit.log()  # in the target's units
    return {
        "set": name,
        "method": title,
        "steps": steps,
        "settings": [str(s) for s in candidates],
        "chosen_setting": which.tolist(),
        "noises": ladder[0].tolist(),
        "chosen_noise": noise.squeeze(1).tolist(),
        "splits": {figure: values.tolist() for figure, values in figures.items()},
        "seconds": {"choosing": tuned - begun, "training": seconds(device) - tuned},
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        "torch": torch.__version__,
        "date": datetime.date.today().isoformat(),
    }


def held_out_costs(candidates: list[Setting], tables: list[data.DataSet], ladder: Tensor, steps: int) -> Tensor:
    """The NLL on each split's held-out part, [splits, settings, rungs of the noise]; infinite where training fails."""
    held = [t.with_validation(0.2, torch.Generator().manual_seed(k)) for k, t in enumerate(tables)]
    train, rest = (
        Rows.of(pairs).to(ladder.device) for pairs in ([t.train for t in held], [t.validation for t in held])
    )

    def cost_of(setting: Setting) -> Tensor:
        draws = tried(setting, train, rest, ladder, steps)
        if draws is None:
            return ladder.double().cpu() + math.inf
        return judged(draws, rest.y, ladder, setting.likelihood)["nll"]

    return torch.stack([cost_of(s) for s in candidates], 1).nan_to_num(math.inf, math.inf)


def tried(setting: Setting, train: Rows, test: Rows, noise: Tensor, steps: int) -> Tensor | None:
    """What ``predicted`` gives, or None where training diverges, as with a step size that is too large."""
    try:
        return predicted(setting, train, test, noise, steps)
    except pst.PosterityError as error:
        print(f"{setting}: {error}", flush=True)
        return None


def seconds(device: torch.device) -> float:
    """On a busy CPU the time of this process counts, on a GPU the wall's."""
    return time.perf_counter() if device.type == "cuda" else time.process_time()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=list(NOISE), default=list(NOISE))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--steps", type=int, help=f"of training; {STEPS}, and {STEPS_OF} if not given")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/uci"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", pst.PosterityWarning)  # a chain that has not settled shows in its figures
    for name in options.sets:
        for title in options.methods:
            path = stored(options.out, name, title)
            if path.exists():
                continue
            steps = options.steps or STEPS_OF.get(name, STEPS)
            found = one(name, title, options.splits, steps, torch.device(options.device))
            write_bytes(path, json.dumps(found, indent=1).encode())
            means = {figure: statistics.mean(values) for figure, values in found["splits"].items()}
            shown = "  ".join(f"{figure} {mean:.4f}" for figure, mean in means.items())
            print(f"{name:10s}{title:26s}{shown}  {sum(found['seconds'].values()):.0f} s", flush=True)


if __name__ == "__main__":
    main()
