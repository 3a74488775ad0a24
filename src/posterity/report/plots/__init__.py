"""Every figure of the report as a function from results to a matplotlib figure, with defaults that a paper could print.

Results are what ``compare`` gives or results.json holds. ``methods`` chooses which to draw, by default all finished.
"""

from posterity.report.plots.calibration import classes as classes
from posterity.report.plots.calibration import coverage as coverage
from posterity.report.plots.calibration import entropies as entropies
from posterity.report.plots.calibration import reliability as reliability
from posterity.report.plots.chains import chains as chains
from posterity.report.plots.curves import cost as cost
from posterity.report.plots.curves import draws as draws
from posterity.report.plots.curves import shift as shift
from posterity.report.plots.curves import temperature as temperature
from posterity.report.plots.curves import training as training
from posterity.report.plots.examples import examples as examples
from posterity.report.plots.examples import surfaces as surfaces
from posterity.report.plots.regression import band as band
from posterity.report.plots.regression import intervals as intervals
from posterity.report.plots.regression import pit as pit
