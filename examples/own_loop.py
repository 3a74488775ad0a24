"""A training loop of one's own, made Bayesian by two lines: IVON in the place of Adam.

python examples/own_loop.py
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import posterity as pst
from posterity import data, models


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--epochs", type=int, default=30)
    epochs = arguments.parse_args().epochs

    digits = data.load("digits")
    train = TensorDataset(*digits.training())
    loader = DataLoader(train, batch_size=32, shuffle=True)
    model = models.mlp(64, 10, hidden=(100,))
    optimizer = pst.optim.IVON(model.parameters(), lr=0.1, num_data=len(train))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)

    for _ in range(epochs):
        for x, y in loader:
            with optimizer.sampled_weights():  # the first new line
                F.cross_entropy(model(x), y).backward()
            optimizer.step()  # takes the gradients and clears them
        schedule.step()

    posterior = optimizer.posterior(model)  # the second
    inputs, targets = digits.test
    p = posterior.predict(inputs, draws=32)
    print(f"accuracy {(p.label == targets).float().mean():.3f}, NLL {-p.log_prob(targets).mean():.3f}")


if __name__ == "__main__":
    main()
