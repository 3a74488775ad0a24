"""What a fit refuses, in one sentence, before it costs anything."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import posterity as pst
from tests.training.problem import LABELS, QUIET, X, mlp


class Endless(IterableDataset):
    """Examples, nobody knows how many."""

    def __iter__(self):
        return iter(zip(X, LABELS, strict=True))


class Table:
    """Something like a DataFrame: an array to numpy, nothing that torch knows."""

    columns = ("a", "b", "c")

    def __len__(self):
        return len(X)

    def __getitem__(self, name):
        return X[:, self.columns.index(name)]


def carried(width: int) -> pst.priors.Normal:
    """A prior that belongs to a network of this width."""
    net = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 2))
    ones = {name: torch.ones_like(p) for name, p in net.named_parameters()}
    return pst.priors.Normal(ones, ones)


@pytest.mark.parametrize("name", ["meta", "xla"])
def test_a_device_on_which_nothing_can_be_computed_is_refused(name):
    with pytest.raises(pst.PosterityError, match=f"device='{name}' was asked for, but torch cannot compute there"):
        pst.fit(mlp(), pst.MAP(), (X, LABELS), epochs=1, training=pst.Training(**QUIET, device=name))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(pst.PosterityError, match="sees no GPU"):
        pst.fit(mlp(), pst.MAP(), (X, LABELS), epochs=1, training=pst.Training(**QUIET, device="cuda"))
    with pytest.raises(pst.PosterityError, match="sees no GPU"):
        pst.load("anything", mlp(), device="cuda")


@pytest.mark.parametrize("method", [pst.SWA(), pst.SWAG(rank=2), pst.HWA(), pst.Laplace()], ids=repr)
def test_half_precision_is_refused_before_training_where_the_posterior_has_another(method):
    steps = []

    class Count:
        def on_epoch(self, run, figures):
            steps.append(run.step)

    with pytest.raises(pst.PosterityError, match=r"single or double precision, got torch\.bfloat16"):
        pst.fit(mlp().bfloat16(), method, (X.bfloat16(), LABELS), training=pst.Training(callbacks=(Count(),), **QUIET))
    assert not steps


def test_bad_labels_late_in_a_loader_are_found():
    loader = [(X[:30], LABELS[:30]), (X[30:], LABELS[30:] + 5)]
    with pytest.raises(pst.PosterityError, match="class targets run"):
        pst.fit(
            mlp(), pst.MAP(), loader, likelihood=pst.likelihoods.Categorical(), epochs=1, training=pst.Training(**QUIET)
        )


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"num_data": 61}, "num_data=61"),
        ({"schedule": "cosin"}, "unknown schedule"),
        ({"optimizer": "adamw"}, "unknown optimizer"),
        ({"optimizer": torch.optim.Adam}, "unknown optimizer"),
        ({"callbacks": (print,)}, r"objects with on_epoch\(run, figures\), got"),
        ({"patience": 3}, "validation"),
        ({"batch_size": 4.0}, "batch_size must be a whole number, got 4.0"),
        ({"accumulate": 2.0}, "accumulate must be a whole number"),
        ({"steps": 1.5}, "steps must be a whole number"),
        ({"resume": True}, "checkpoint"),
        ({"batch_size": 0}, "batch_size"),
        ({"validation": 1.5}, "validation fraction"),
        ({"lr": -1.0}, "lr"),
        ({"device": "gpu"}, "names no device"),
    ],
)
def test_bad_settings_are_refused(changes, match):
    with pytest.raises(pst.PosterityError, match=match):
        pst.fit(mlp(), pst.MAP(), (X, LABELS), epochs=1, training=pst.Training(**QUIET, **changes))


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"epochs": 0}, "epochs"),
        ({"epochs": 1.5}, "epochs must be a whole number, got 1.5"),
        ({"data": Endless()}, "a data set without a length"),
        ({"epochs": "ten"}, "epochs must be a whole number, got 'ten'"),
        ({"seed": "a"}, "seed must be a whole number, got 'a'"),
        ({"seed": None}, "seed must be a whole number, got None"),
        ({"likelihood": "Categorical"}, r"such as likelihoods.Categorical\(\), got 'Categorical'"),
        ({"likelihood": pst.likelihoods.Categorical}, "such as likelihoods.Categorical"),
        ({"training": {"lr": 0.1}}, "training must be a posterity.Training, got {'lr': 0.1}"),
        ({"members": 0}, "members"),
        ({"members": 1.5}, "members must be a whole number"),
        ({"method": pst.MAP(prior=0.1)}, r"such as priors.Normal\(1.0\), got 0.1"),
        ({"method": pst.HWA(of=pst.MeanField(prior=0.1))}, "such as priors.Normal"),
        ({"method": "map"}, "method"),
        ({"data": []}, "no batches"),
        ({"data": [X]}, "a batch must be"),
        ({"data": [X]}, "'labels', got Tensor"),
        ({"data": "digits"}, "'labels', got str"),
        ({"data": (X.half(), LABELS)}, r"inputs of shape \(batch, \d\) and type float16"),
        ({"data": (X.tolist(), LABELS)}, "inputs must be tensors, got list"),
        ({"data": (Table(), LABELS)}, "inputs must be a tensor or an array of numbers, got Table"),
        ({"data": (X, np.array(["yes", "no"] * 30))}, "targets must be a tensor or an array of numbers, got ndarray"),
        ({"data": iter([(X, LABELS)])}, "read only once"),
        ({"data": (X, LABELS, torch.ones(len(X)))}, "weights come with the batches"),
        ({"data": [(X, LABELS, -torch.ones(len(X)))]}, "weights of examples must not be negative, got -1.0"),
        ({"data": [(X, LABELS, X)]}, "needs one weight"),
        *(
            ({"data": [(X, LABELS, torch.ones(len(X)))], "method": method}, "squares the gradient of every example")
            for method in (pst.VOGN(), pst.NoisyKFAC(), pst.HWA(of=pst.VOGN()))
        ),
        ({"module": lambda: torch.jit.trace(mlp(), X)}, "script"),
        ({"module": lambda: mlp().requires_grad_(False)}, r"no parameter to train: .* requires_grad_\(True\)"),
        ({"module": lambda: 3}, "must make an nn.Module, got int"),
        ({"module": nn.Linear}, "or make one when called"),
        ({"method": pst.MAP(prior=carried(4))}, r"'0.weight' has shape \(4, 3\), but the network's is \(8, 3\)"),
        ({"method": pst.MeanField(prior=carried(4))}, r"'0.weight' has shape \(4, 3\)"),
        ({"method": pst.MAP(prior=pst.priors.Normal({"a": 1.0}))}, "says nothing about parameter '0.weight'"),
        ({"module": lambda: nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 3)))}, "layer '0' has .* old weight"),
        ({"module": lambda: nn.utils.spectral_norm(nn.Linear(4, 3))}, "the network has .* old weight"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore:.*weight_norm:FutureWarning")
def test_bad_arguments_are_refused(arguments, match):
    given = {"module": mlp(), "method": pst.MAP(), "data": (X, LABELS), "epochs": 1} | arguments
    given = {"training": pst.Training(**QUIET)} | given
    with pytest.raises(pst.PosterityError, match=match):
        pst.fit(given.pop("module"), given.pop("method"), given.pop("data"), **given)


@pytest.mark.parametrize("form", [lambda pair: pair, lambda pair: DataLoader(TensorDataset(*pair), 16), lambda p: [p]])
def test_a_single_example_left_over_is_refused_where_the_network_cannot_train_on_one(form):
    def fit(network: nn.Module, count: int) -> pst.Posterior:
        data = form((X[:count], LABELS[:count]))
        return pst.fit(network, pst.MAP(), data, epochs=1, training=pst.Training(**QUIET, batch_size=16))

    alone = 1 if isinstance(form((X, LABELS)), list) else 33
    normed = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)).double()
    with pytest.raises(pst.PosterityError, match="a batch of a single example"):
        fit(normed, alone)
    fit(normed, alone + 1)
    fit(mlp(), alone)


class Shifting(nn.Module):
    """Shifts the inputs that it was given, for good."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2).double()

    def forward(self, x):
        return self.layer(x.sub_(0.5))


def test_a_network_that_writes_into_its_inputs_is_refused():
    """Every further draw saw inputs shifted once more, and so did the user."""
    before = X.clone()
    with pytest.raises(pst.PosterityError, match="writes into its inputs"):
        pst.fit(Shifting(), pst.MAP(), (X, LABELS), epochs=1, training=pst.Training(**QUIET))
    assert torch.equal(X, before)


def test_batchnorm_without_running_statistics_is_refused():
    """Predictions differed with the blocks that inputs go through the network in, whose size is chosen by time."""
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 2))
    with pytest.raises(pst.PosterityError, match=r"1 \(BatchNorm1d\) has no running statistics"):
        pst.fit(net, pst.MAP(), (X, LABELS), epochs=1, training=pst.Training(**QUIET))


def test_tensorboard_is_asked_for_by_name():
    with pytest.raises(pst.PosterityError, match="pip install tensorboard"):
        pst.fit(mlp(), pst.MAP(), (X, LABELS), epochs=1, training=pst.Training(tensorboard="board", **QUIET))


@pytest.mark.parametrize("method", [pst.MAP(), pst.VOGN(), pst.IVON()], ids=repr)
def test_what_a_broken_loss_is_answered_with_can_be_done(method):
    """Clipping was advised to methods that refuse it."""
    with pytest.raises(pst.PosterityError, match="the loss became") as stopped:
        pst.fit(mlp(), method, (X, LABELS), epochs=50, training=pst.Training(lr=1e308, **QUIET))
    if "clip=1.0" in str(stopped.value):
        pst.fit(mlp(), method, (X, LABELS), epochs=1, training=pst.Training(clip=1.0, **QUIET))
    else:
        with pytest.raises(pst.PosterityError, match="clip does not apply"):
            pst.fit(mlp(), method, (X, LABELS), epochs=1, training=pst.Training(clip=1.0, **QUIET))


@pytest.mark.parametrize("target", [LABELS[0], 1, np.int64(1)])
def test_a_list_of_single_examples_is_refused(target):
    with pytest.raises(pst.PosterityError, match="a batch holds many examples, but here is one"):
        pst.fit(mlp(), pst.MAP(), [(X[0], target)], epochs=1, training=pst.Training(**QUIET))


class Ragged(Dataset):
    """Sentences of different lengths, say."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return X[0, : 1 + index % 3], 0


@pytest.mark.parametrize("validation", [None, 0.5])
def test_examples_that_make_no_batch_are_refused(validation):
    with pytest.raises(pst.PosterityError, match=r"do not make a batch .* give a DataLoader with a collate_fn"):
        pst.fit(mlp(), pst.MAP(), Ragged(), epochs=1, training=pst.Training(**QUIET, validation=validation))


class WithLogits(nn.Module):
    """Returns what networks of Hugging Face do."""

    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, x):
        return {"logits": self.net(x)}


def test_a_network_that_returns_more_than_a_tensor_is_told_what_to_do():
    with pytest.raises(pst.PosterityError, match="one tensor, got dict: wrap it in a module that returns its logits"):
        pst.fit(WithLogits(), pst.MAP(), (X, LABELS), epochs=1, training=pst.Training(**QUIET))
