"""Plain nn.Modules, nothing Bayesian about them."""

from posterity.models.convolutional import VGG as VGG
from posterity.models.convolutional import alexnet as alexnet
from posterity.models.convolutional import lenet5 as lenet5
from posterity.models.convolutional import lenet5_caffe as lenet5_caffe
from posterity.models.convolutional import vgg16 as vgg16
from posterity.models.convolutional import vgg_like as vgg_like
from posterity.models.dense import lenet_300_100 as lenet_300_100
from posterity.models.dense import mlp as mlp
from posterity.models.registry import default_for as default_for
from posterity.models.registry import describe as describe
from posterity.models.registry import make as make
from posterity.models.registry import names as names
from posterity.models.residual import resnet18 as resnet18
from posterity.models.text import LSTM as LSTM
from posterity.models.text import Transformer as Transformer
