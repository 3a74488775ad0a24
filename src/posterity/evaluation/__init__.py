"""Is the confidence to be believed: proper scores, calibration, ranking, out of distribution, shift, intervals."""

from posterity.evaluation.by_class import by_class as by_class
from posterity.evaluation.chains import to_arviz as to_arviz
from posterity.evaluation.connection import connect as connect
from posterity.evaluation.diagnostics import diagnose as diagnose
from posterity.evaluation.diagnostics import diversity as diversity
from posterity.evaluation.evaluate import evaluate as evaluate
from posterity.evaluation.landscape import landscape as landscape
from posterity.evaluation.result import Comparison as Comparison
from posterity.evaluation.result import Scores as Scores
