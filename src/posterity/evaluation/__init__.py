"""Is the confidence to be believed: proper scores, calibration, ranking, out of distribution, shift, intervals."""

from posterity.evaluation.evaluate import evaluate as evaluate
from posterity.evaluation.result import Comparison as Comparison
from posterity.evaluation.result import Scores as Scores
