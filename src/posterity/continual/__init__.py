"""Learning that goes on: the posterior of one task as the prior of the next, streams of tasks, and baselines."""

from posterity.continual.benchmarks import BENCHMARKS as BENCHMARKS
from posterity.continual.benchmarks import benchmark as benchmark
from posterity.continual.functional import Functional as Functional
from posterity.continual.learn import TaskError as TaskError
from posterity.continual.learn import learn as learn
from posterity.continual.memory import Memory as Memory
from posterity.continual.online import carry_on as carry_on
from posterity.continual.online import online as online
from posterity.continual.result import Learned as Learned
from posterity.continual.strategy import EWC as EWC
from posterity.continual.strategy import Carry as Carry
from posterity.continual.strategy import FineTuning as FineTuning
from posterity.continual.strategy import Joint as Joint
from posterity.continual.strategy import Replay as Replay
from posterity.continual.strategy import Strategy as Strategy
from posterity.continual.tasks import Permuted as Permuted
from posterity.continual.tasks import Task as Task
from posterity.continual.tasks import split as split
