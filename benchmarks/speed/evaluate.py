"""How long `evaluate` takes on 10,000 examples, 10 classes, 32 draws, with and without out-of-distribution data.

Figures, details and 500 bootstrap resamples together; CPU seconds, median of five. Target: under 2 s.
"""

import statistics
import time

import torch
from torch import nn

from posterity.evaluation import evaluate
from posterity.posteriors import DiagonalGaussian
from posterity.probability.likelihoods import Categorical


def seconds(function, rounds=5):
    taken = []
    for _ in range(rounds):
        start = time.process_time()
        function()
        taken.append(time.process_time() - start)
    return statistics.median(taken)


def main():
    torch.set_num_threads(1)
    net = nn.Sequential(nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 10))
    mean = {name: p.detach() for name, p in net.named_parameters()}
    posterior = DiagonalGaussian(net, Categorical(), mean, {name: torch.full_like(p, 0.1) for name, p in mean.items()})
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(10_000, 64, generator=generator), torch.randint(10, (10_000,), generator=generator)
    predict = seconds(lambda: posterior.predict(data[0], 32))
    alone = seconds(lambda: evaluate(posterior, data))
    with_ood = seconds(lambda: evaluate(posterior, data, ood={"loud": 3 * data[0]}))
    print(f"predict alone                     {predict:.2f} s")
    print(f"evaluate                          {alone:.2f} s")
    print(f"evaluate + 10,000 foreign inputs  {with_ood:.2f} s")


if __name__ == "__main__":
    main()
