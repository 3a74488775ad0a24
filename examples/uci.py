"""Regression on tables: RMSE and NLL of several posteriors on one standard split of the UCI sets.

python examples/uci.py --sets concrete energy yacht        # writes uci.json
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

import posterity as pst
from posterity import data, models

PRIOR = pst.priors.Normal(1.0)
ADAM = pst.Training(batch_size=32, lr=0.005)
METHODS: dict[str, tuple[pst.Method, int, pst.Training]] = {  # with how many members, and how trained
    "MAP": (pst.MAP(prior=PRIOR), 1, ADAM),
    "deep ensemble": (pst.MAP(prior=PRIOR), 5, ADAM),
    "MC dropout": (pst.Dropout(prior=PRIOR, rate=0.05, insert=("fc2",)), 1, ADAM),
    "SWAG": (pst.SWAG(prior=PRIOR, rank=10), 1, ADAM),
    "MeanField": (pst.MeanField(prior=PRIOR, init_std=0.05), 1, ADAM),
    "IVON": (pst.IVON(prior=PRIOR, hess_init=10.0, beta2=0.999), 1, pst.Training(batch_size=32, lr=0.05)),
    "Laplace": (pst.Laplace(prior=PRIOR), 1, ADAM),
    "SGHMC": (pst.SGHMC(prior=PRIOR), 1, pst.Training(batch_size=32, lr=0.001)),
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--sets", nargs="+", default=["concrete", "energy", "yacht"])
    arguments.add_argument("--epochs", type=int, default=100)
    arguments.add_argument("--out", type=Path, default=Path("."))
    options = arguments.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name in options.sets:
        table = data.load(name) if name in data.names() else data.load(f"uci-{name}", split=0)
        for title, (method, members, training) in METHODS.items():
            torch.manual_seed(0)
            network = models.mlp(table.shape[0], 1, hidden=(50,))
            q = pst.fit(network, method, table.train, epochs=options.epochs, members=members, training=training)
            scores = pst.evaluate(q, table, draws=128, resamples=0)  # in the table's own units
            row = {"RMSE": scores["rmse"], "NLL": scores["nll"]}
            found.setdefault(name, {})[title] = row
            print(f"{name:<16}{title:<16}RMSE {row['RMSE']:8.3f}   NLL {row['NLL']:8.3f}", flush=True)
    (options.out / "uci.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    try:
        main()
    except pst.PosterityError as error:
        sys.exit(str(error))
