"""From draws to a Prediction: batched, streaming, decomposed."""

from posterity.prediction.engine import Compute, predict
from posterity.prediction.prediction import Classification, Prediction, Regression

__all__ = ["Classification", "Compute", "Prediction", "Regression", "predict"]
