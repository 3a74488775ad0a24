"""Magnitude, L1 and random pruning on MNIST: error and compression beside the published table; one process a seed.

    python -m benchmarks.quality.pruning --model lenet_300_100 --seed 0 --out results/pruning
    python -m benchmarks.quality.pruning --model lenet5_caffe --seed 0 --out results/pruning
    ... --only "magnitude, gradual"

Writes MODEL--SEED.json after every method. Published (Han et al. 2015, as in the SparseVD paper): LeNet-300-100 1.59%
at 12x, LeNet-5-Caffe 0.77% at 12x. Nothing is chosen by the test data: every setting below was fixed beforehand.
"""

import argparse
import json
from pathlib import Path

import posterity as pst
from benchmarks.quality.sparse_mnist import compressed, error, plain_network
from posterity import data, masks, models

METHODS = {
    "magnitude, gradual": lambda keep: pst.Pruning(keep=keep),
    "magnitude, iterative": lambda keep: pst.Pruning(keep=keep, ramp="iterative", rounds=6),
    "magnitude, one shot": lambda keep: pst.Pruning(keep=keep, ramp="one-shot", start=0.5, stop=0.6),
    "L1, gradual": lambda keep: pst.Pruning(keep=keep, prior=pst.priors.Laplace(0.1)),
    "magnitude, whole units": lambda keep: pst.Pruning(keep=keep**0.5, whole_units=True, per_layer=True),
    "random, gradual": lambda keep: pst.Pruning(keep=keep, criterion="random"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="lenet_300_100")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ratio", type=float, default=12.0, help="|W| / |W ≠ 0| at the end")
    parser.add_argument("--only", choices=METHODS, help="one of the methods")
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    options = parser.parse_args()
    mnist = data.load("mnist")
    rows = {}
    for name in METHODS if options.only is None else [options.only]:
        posterior = pst.fit(
            lambda: models.make(options.model, mnist),
            METHODS[name](1 / options.ratio),
            mnist.training(),
            epochs=options.epochs,
            seed=options.seed,
            training=pst.Training(lr=1e-3, record=True, progress=False),
        )
        network = plain_network(posterior)
        weights = masks.weights(dict(network.named_parameters())).values()
        ratio = sum(w.numel() for w in weights) / sum(int((w != 0).sum()) for w in weights)
        rows[name] = {"error": error(network, mnist.test), "ratio": ratio} | compressed(posterior, mnist.test)
        print(json.dumps({name: rows[name]}), flush=True)
        options.out.mkdir(parents=True, exist_ok=True)
        written = {"model": options.model, "seed": options.seed, "epochs": options.epochs, "rows": rows}
        (options.out / f"{options.model}--{options.seed}.json").write_text(json.dumps(written, indent=1))


if __name__ == "__main__":
    main()
