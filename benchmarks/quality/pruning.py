"""Magnitude, L1 and random pruning on MNIST: error and compression beside the published table.

python benchmarks/quality/pruning.py --model lenet_300_100 --epochs 60 --seeds 3
python benchmarks/quality/pruning.py --model lenet5_caffe --epochs 60 --seeds 3

Published (Han et al. 2015, as in the SparseVD paper): LeNet-300-100 1.59% at 12x, LeNet-5-Caffe 0.77% at 12x.
Nothing is chosen by the test data: every setting below was fixed beforehand.
"""

import argparse
import statistics

import posterity as pst
from posterity import data, models

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
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ratio", type=float, default=12.0, help="|W| / |W ≠ 0| at the end")
    parser.add_argument("--only", choices=METHODS, help="one of the methods")
    options = parser.parse_args()
    mnist = data.load("mnist")
    test = list(zip(mnist.test[0].split(500), mnist.test[1].split(500), strict=True))
    for name, make in METHODS.items():
        if options.only not in (None, name):
            continue
        errors, reports = [], []
        for seed in range(options.seeds):
            posterior = pst.fit(
                lambda: models.make(options.model, mnist),
                make(1 / options.ratio),
                mnist.training(),
                epochs=options.epochs,
                seed=seed,
                training=pst.Training(lr=1e-3, progress=False),
            )
            report = pst.compress(posterior.to("cpu"), validation=test).compression
            assert report.accuracy is not None
            errors.append(100 * (1 - report.accuracy[1]))
            reports.append(report)
        last = reports[-1]
        spread = f" ± {statistics.stdev(errors):.2f}" if len(errors) > 1 else ""
        print(
            f"{options.model}, {name}: error {statistics.mean(errors):.2f}{spread}% at {last.ratio:.1f}x weights, "
            f"{last.bytes[0] / last.bytes[1]:.1f}x bytes, {last.flops[0] / last.flops[1]:.1f}x FLOPs ({last.form})",
            flush=True,
        )


if __name__ == "__main__":
    main()
