"""Where examples come from: sets by name, one's own files, splits, augmentation, corruptions."""

from posterity.data.augment import CropFlip as CropFlip
from posterity.data.corruptions import CORRUPTIONS as CORRUPTIONS
from posterity.data.corruptions import SEVERITIES as SEVERITIES
from posterity.data.corruptions import corrupt as corrupt
from posterity.data.corruptions import corruptions_for as corruptions_for
from posterity.data.dataset import DataSet as DataSet
from posterity.data.dataset import Kind as Kind
from posterity.data.dataset import Task as Task
from posterity.data.registry import Description as Description
from posterity.data.registry import data_folder as data_folder
from posterity.data.registry import describe as describe
from posterity.data.registry import load as load
from posterity.data.registry import names as names
from posterity.data.sampling import long_tailed as long_tailed
from posterity.data.text import Vocabulary as Vocabulary
from posterity.data.units import Standardiser as Standardiser
