"""Networks that ``torch.compile`` has wrapped: posteriors go by the names of the network itself."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import posterity as pst

G = torch.Generator().manual_seed(0)
X = torch.randn(40, 3, generator=G)
Y = X.argmax(1)
torch.manual_seed(0)
NETWORK = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))


@pytest.fixture
def compiled():
    """The network as ``torch.compile`` wraps it; a backend that leaves the code as it is takes no time."""
    return torch.compile(copy.deepcopy(NETWORK), backend="eager")


@pytest.mark.parametrize(
    "method", [pst.MAP(), pst.MeanField(), pst.SWAG(rank=2, start=0.1, every=1), pst.VOGN(), pst.Laplace()], ids=repr
)
def test_a_compiled_network_is_fitted_as_the_plain_one(compiled, method, tmp_path):
    training = pst.Training(batch_size=20, progress=False)
    plain, other = (pst.fit(net, method, (X, Y), epochs=8, training=training) for net in (NETWORK, compiled))
    torch.testing.assert_close(other.mean(), plain.mean(), rtol=0, atol=0)
    torch.testing.assert_close(other.variance(), plain.variance(), rtol=0, atol=0)
    pst.save(other, tmp_path / "q.safetensors")
    torch.testing.assert_close(pst.load(tmp_path / "q.safetensors", NETWORK).mean(), plain.mean(), rtol=0, atol=0)
    torch.testing.assert_close(pst.load(tmp_path / "q.safetensors", compiled).mean(), plain.mean(), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of what it does itself
@pytest.mark.parametrize(
    "optimizer", [lambda net: pst.optim.IVON(net.parameters(), 0.1, 40), lambda net: pst.optim.VOGN(net, 0.1, 40)]
)
def test_in_a_loop_of_ones_own_a_compiled_network_has_its_own_names(compiled, optimizer):
    own = optimizer(compiled)
    with own.sampled_weights():
        F.cross_entropy(compiled(X), Y).backward()
    own.step()
    posterior = own.posterior(compiled)
    assert list(posterior.mean()) == [name for name, _ in NETWORK.named_parameters()]
    torch.testing.assert_close(posterior.mean(), dict(compiled._orig_mod.named_parameters()), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [pst.optim.OGN, lambda net, *rest: pst.optim.IVON(net.parameters(), *rest)])
def test_a_whole_step_that_is_compiled_counts_its_steps(make):
    def trained(backend):
        torch.compiler.reset()
        network = copy.deepcopy(NETWORK).double()
        own = make(network, 0.1, 40)

        def step():
            with own.sampled_weights():
                F.cross_entropy(network(X.double()), Y).backward()
            own.step()

        run = torch.compile(step, backend=backend) if backend else step
        for _ in range(5):
            run()
        return dict(network.named_parameters())

    torch.testing.assert_close(trained("eager"), trained(None), rtol=1e-10, atol=1e-12)


def test_swag_collects_from_a_compiled_network(compiled):
    swag = pst.SWAGCollector(compiled, rank=2)
    for _ in range(3):
        with torch.no_grad():
            for p in compiled.parameters():
                p.add_(1.0)
        swag.collect()
    expected = {name: p.detach() + 2 for name, p in NETWORK.named_parameters()}
    torch.testing.assert_close(swag.posterior(pst.likelihoods.Categorical()).mean(), expected)


def test_laplace_after_training_of_a_compiled_network(compiled):
    plain, other = (pst.Laplace().post_hoc(net, (X, Y)) for net in (NETWORK, compiled))
    torch.testing.assert_close(other.variance(), plain.variance(), rtol=0, atol=0)


@pytest.mark.parametrize("method", [pst.MAP(), pst.Laplace()], ids=repr)
def test_a_network_wrapped_over_devices_is_refused(method):
    with pytest.raises(pst.PosterityError, match=r"DataParallel wraps a network over devices, .* give its \.module"):
        pst.fit(nn.DataParallel(NETWORK), method, (X, Y), epochs=1)


@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of what it does itself
@pytest.mark.parametrize("estimator", ["auto", "local", "flipout", "reparameterised", None])
def test_a_variational_network_is_compiled_once_and_whole(estimator):
    """One graph a pass from the first step on: what compiles anew at the second cannot be recorded on a GPU."""
    torch._dynamo.reset()
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    method = pst.MNF(hidden=4) if estimator is None else pst.MeanField(estimator=estimator)
    plain = nn.Sequential(nn.Conv1d(1, 4, 2), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
    net = method.prepare(plain).train()
    forward = torch.compile(net, backend=backend)
    for _ in range(3):
        (F.cross_entropy(forward(X[:, None]), Y) + pst.kl(net) / len(X)).backward()
    assert len(graphs) == 1
    assert all(p.grad is not None for p in net.parameters())


@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of what it does itself
@pytest.mark.parametrize(
    "method",
    [
        *(pst.MAP(), pst.MeanField(), pst.SparseVD(), pst.MNF(hidden=4), pst.SWAG(rank=2, start=0.5, every=1)),
        *(pst.VOGN(), pst.OGN(), pst.IVON(), pst.KFAC(), pst.SGHMC(lr=0.01), pst.HWA(of=pst.VOGN())),
    ],
    ids=lambda method: type(method).__name__,
)
def test_a_compiled_fit_is_the_plain_one(method, monkeypatch):
    """Through torch's tracer and its automatic derivatives, without the minutes that making kernels takes."""
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    network = nn.Sequential(nn.Conv1d(1, 4, 2), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)).double()
    data = X[:, None].double(), Y
    plain, compiled = (
        pst.fit(network, method, data, epochs=6, training=pst.Training(batch_size=16, compile=c, progress=False))
        for c in (False, True)
    )
    torch.testing.assert_close(compiled.mean(), plain.mean(), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(compiled.variance(), plain.variance(), rtol=1e-9, atol=1e-12)


@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of what it does itself
def test_whole_batches_keep_the_graph_of_their_own_size_beside_a_ragged_last_one(monkeypatch):
    """Left to itself the compiler answers a second size with a graph for any, and from then on uses it for all."""
    torch._dynamo.reset()
    graphs, ran = [], []

    def backend(graph, inputs):
        number = len(graphs)
        graphs.append([size for each in inputs if isinstance(each, torch.Tensor) for size in each.shape])
        return lambda *given: ran.append(number) or graph.forward(*given)

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    training = pst.Training(batch_size=len(X) // 2 - 1, compile=True, progress=False)  # two whole ones and one of two
    pst.fit(NETWORK, pst.MAP(), (X, Y), epochs=2, training=training)
    assert all(type(size) is int for sizes in graphs for size in sizes)
    assert ran == [0, 0, 1, 0, 0, 1]
