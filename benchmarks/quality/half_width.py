"""Two ways to pay for a Bayesian CNN's second parameter: prune by L1, or halve the filters (Shridhar et al.).

python benchmarks/quality/half_width.py --data mnist --epochs 30 --seeds 3

A mean-field LeNet-5 has a mean and a std for every weight, twice the parameters of the plain network. Halving all
widths leaves it with about half of the plain network's; L1 pruning keeps as many weights as give the same count. Beside
them, the same posterior pruned by signal to noise. The published claim is about equal accuracy.
"""

import argparse
import statistics

from torch import nn

import posterity as pst
from posterity import data
from posterity.compression.pipeline import accuracy


def lenet5(dataset: data.DataSet, width: float = 1.0) -> nn.Sequential:
    """LeNet-5 with all hidden widths times ``width``."""
    first, second, third, fourth = (round(width * w) for w in (6, 16, 120, 84))
    return nn.Sequential(
        nn.Conv2d(dataset.shape[0], first, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.LazyLinear(third), nn.ReLU(), nn.Linear(third, fourth), nn.ReLU(),
        nn.Linear(fourth, dataset.outputs),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    dataset = data.load(options.data)
    inputs, labels = dataset.test

    def fit(method: pst.Method, width: float, seed: int) -> pst.Posterior:
        training = pst.Training(lr=1e-3, progress=False)
        make = lambda: lenet5(dataset, width)  # noqa: E731
        return pst.fit(make, method, dataset.training(), epochs=options.epochs, seed=seed, training=training)

    def error(posterior: pst.Posterior) -> float:
        wrong = posterior.predict(inputs.to(posterior.device)).label.cpu() != labels
        return 100 * float(wrong.float().mean())

    def compressed_error(posterior: pst.Posterior, keep: float) -> float:
        small = pst.compress(posterior.to("cpu"), keep=keep, example=inputs[:2])
        return 100 * (1 - accuracy(small, [dataset.test]))

    keep = 0.25  # of the weights: as many numbers as the half-width network's weights
    rows = {
        "plain, full width": lambda seed: error(fit(pst.MAP(), 1.0, seed)),
        "plain, half width": lambda seed: error(fit(pst.MAP(), 0.5, seed)),
        "mean field, full width": lambda seed: error(fit(pst.MeanField(), 1.0, seed)),
        "mean field, half width": lambda seed: error(fit(pst.MeanField(), 0.5, seed)),
        "plain, L1, a quarter of the weights": lambda seed: error(
            fit(pst.Pruning(keep=keep, prior=pst.priors.Laplace(0.1)), 1.0, seed)
        ),
        "mean field, a quarter by signal to noise": lambda seed: compressed_error(
            fit(pst.MeanField(), 1.0, seed), keep
        ),
    }
    for name, run in rows.items():
        errors = [run(seed) for seed in range(options.seeds)]
        spread = f" ± {statistics.stdev(errors):.2f}" if len(errors) > 1 else ""
        print(f"{options.data}, {name}: error {statistics.mean(errors):.2f}{spread}%", flush=True)


if __name__ == "__main__":
    main()
