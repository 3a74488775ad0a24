"""Text: SST-2 sentences (positive or negative), a small transformer and an LSTM.

6,920 sentences to learn from and 1,821 to be judged on, words in lower case, no pre-training: this is about the
methods, and far from what large language models reach. Both networks have dropout of their own.
"""

from __future__ import annotations

import posterity as pst
from benchmarks.quality.tables import Candidate, Network, Row, Table, row
from posterity import data
from posterity.data import DataSet
from posterity.models import LSTM, Transformer


def transformer(dataset: DataSet) -> Transformer:
    """Two blocks of width 64."""
    assert dataset.vocabulary is not None
    return Transformer(len(dataset.vocabulary), dataset.shape[0], dataset.outputs)


def lstm(dataset: DataSet) -> LSTM:
    """Two layers of width 64."""
    assert dataset.vocabulary is not None
    return LSTM(len(dataset.vocabulary), dataset.outputs)


def rows() -> dict[str, Row]:
    """Most of the half million weights are word vectors of rare words: mean field and IVON may be cold."""
    return {
        "MAP": row(pst.MAP(), pst.MAP(prior=pst.priors.Normal(0.3)), lr=1e-3),
        "Ensemble": Row((Candidate(pst.MAP(), pst.Training(lr=1e-3), members=5),)),
        "MeanField": row(
            pst.MeanField(temperature=0.01), pst.MeanField(temperature=0.1), pst.MeanField(temperature=1.0), lr=1e-3
        ),
        "SWAG": row(pst.SWAG(rank=10), pst.SWAG(rank=10, start=0.3), lr=1e-3),
        "IVON": row(
            pst.IVON(lr=1.0, hess_init=0.1, beta2=0.9995, temperature=0.01),
            pst.IVON(lr=0.3, hess_init=0.03, beta2=0.9995, temperature=0.01),
            pst.IVON(lr=3.0, hess_init=0.5, beta2=0.9995, temperature=0.1),
            pst.IVON(lr=1.0, hess_init=0.5, beta2=0.9995),
        ),
    }


def table(name: str, title: str, network: Network) -> Table:
    """One of the two networks."""
    return Table(
        name=name,
        title=title,
        about="Words without pre-training.",
        data=lambda seed: data.load("sst2"),
        network=network,
        rows=rows(),
        epochs=8,
        batch_size=32,
        record=False,
        held=0.1,
        figures=("accuracy", "nll", "ece", "misclassification_auroc"),
    )


TABLES = (
    table("text_transformer", "A transformer on SST-2 sentences", transformer),
    table("text_lstm", "An LSTM on SST-2 sentences", lstm),
)
