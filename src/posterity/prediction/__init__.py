"""From draws to a Prediction: batched, streaming, decomposed."""

from posterity.prediction.engine import predict
from posterity.prediction.passes import Compute
from posterity.prediction.prediction import Classification, Prediction, Regression

__all__ = ["Classification", "Compute", "Prediction", "Regression", "predict"]
