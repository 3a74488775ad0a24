"""Learning that goes on: posterior as prior, task streams, HCL."""

from posterity.continual.conditional import ClassConditionalFlow as ClassConditionalFlow
from posterity.continual.detection import Detector as Detector
from posterity.continual.detection import Typicality as Typicality
from posterity.continual.flows import Flow as Flow
from posterity.continual.flows import feature_flow as feature_flow
from posterity.continual.flows import pixel_flow as pixel_flow
from posterity.continual.hcl import HCL as HCL
from posterity.continual.hcl import FunctionalRegularisation as FunctionalRegularisation
from posterity.continual.hcl import GenerativeReplay as GenerativeReplay
from posterity.continual.hcl import learn_hcl as learn_hcl
