"""Three posteriors on handwritten digits, and whether their confidence is to be believed.

python examples/first_steps.py
"""

from __future__ import annotations

import argparse

import posterity as pst
from posterity import data, models


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--epochs", type=int, default=40)
    epochs = arguments.parse_args().epochs

    digits = data.load("digits")
    network = models.mlp(64, 10, hidden=(100,))
    training = pst.Training(batch_size=32)
    posteriors = {
        "MAP": pst.fit(network, pst.MAP(), digits.train, epochs=epochs, training=training),
        "MC dropout": pst.fit(
            network, pst.Dropout(rate=0.2, insert=("fc2",)), digits.train, epochs=epochs, training=training
        ),
        "deep ensemble": pst.fit(network, pst.MAP(), digits.train, epochs=epochs, members=5, training=training),
    }

    # Digits turned by 60 degrees are no digits that any of them has seen: a good posterior is less sure of them.
    turned = data.corrupt(digits.test[0], "rotation", 5, kind=digits.kind, standardiser=digits.standardiser)
    print(f"{'':<16}{'accuracy':>10}{'NLL':>10}{'ECE':>10}{'entropy':>10}{'turned by 60°':>16}")
    for name, posterior in posteriors.items():
        scores = pst.evaluate(posterior, digits)
        unsure = posterior.predict(turned).entropy.mean().item()
        print(
            f"{name:<16}{scores['accuracy']:>10.3f}{scores['nll']:>10.3f}{scores['ece']:>10.3f}"
            f"{scores['entropy']:>10.3f}{unsure:>16.3f}"
        )

    p = posteriors["deep ensemble"].predict(digits.test[0])
    most = int(p.epistemic.argmax())
    first, second = p.probs[most].topk(2).indices.tolist()
    print(f"The members disagree most on test image {most}, a {digits.test[1][most]}: is it a {first} or a {second}?")


if __name__ == "__main__":
    main()
