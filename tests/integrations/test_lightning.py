"""A Trainer with the callback gives the posterior that ``posterity.fit`` gives."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import posterity as pst
from tests.contract.cases import data, network

lightning = pytest.importorskip("lightning.pytorch")
from posterity.integrations.lightning import Bayesian  # noqa: E402  (it needs lightning)

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning has advice of its own, and short runs alarm the doctor
INPUTS, TARGETS = data()


class Classifier(lightning.LightningModule):
    """A user's module: its own loss and its own optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def training_step(self, batch, index):
        inputs, targets = batch
        return F.cross_entropy(self.net(inputs), targets)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


class Endless(IterableDataset):
    """A stream that does not say how long it is."""

    def __iter__(self):
        yield from zip(INPUTS, TARGETS, strict=True)


def loader() -> DataLoader:
    return DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=32)


def trained(bayesian: Bayesian, tmp_path, model: Classifier | None = None, batches=None, **options) -> Classifier:
    model = model or Classifier()
    trainer = lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        **{"callbacks": [bayesian], "max_epochs": 4, "enable_checkpointing": False, **options},
    )
    trainer.fit(model, loader() if batches is None else batches)
    return model


def by_hand(method: pst.Method, training: pst.Training) -> pst.Posterior:
    """The same batches in the same order, without Lightning."""
    return pst.fit(network(), method, loader(), epochs=4, training=training)


def test_ivon_meets_fit(tmp_path):
    bayesian = Bayesian(pst.IVON(), "net", pst.likelihoods.Categorical())
    trained(bayesian, tmp_path)
    expected = by_hand(pst.IVON(), pst.Training(progress=False, device="cpu"))
    torch.testing.assert_close(bayesian.posterior.mean(), expected.mean())
    torch.testing.assert_close(bayesian.posterior.variance(), expected.variance())
    torch.testing.assert_close(bayesian.posterior.predict(INPUTS).probs, expected.predict(INPUTS).probs)


def test_swag_is_the_gaussian_of_the_path(tmp_path):
    bayesian = Bayesian(pst.SWAG(rank=3, start=0, every=3), "net", pst.likelihoods.Categorical())
    trained(bayesian, tmp_path)
    net, path = network(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for _ in range(4):
        for inputs, targets in loader():
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), targets).backward()
            optimizer.step()
        path.append(net[0].weight.detach().clone())
    torch.testing.assert_close(bayesian.posterior.mean()["0.weight"], torch.stack(path).mean(0))
    assert len(bayesian.posterior.q.deviations) == 3


def test_mean_field_adds_the_gradient_of_the_kl(tmp_path):
    method = pst.MeanField(prior=pst.priors.Normal(0.5), bayesian_bias=True)
    seen = []

    class Watch(lightning.Callback):
        def on_before_optimizer_step(self, trainer, module, optimizer):
            seen.append([p.grad.clone() for p in module.net.parameters()])

    class NoData(Classifier):
        def training_step(self, batch, index):
            return 0.0 * super().training_step(batch, index)

    bayesian, model = Bayesian(method, "net", pst.likelihoods.Categorical()), NoData()
    twin = method.prepare(copy.deepcopy(model.net))
    (0.0 * twin(INPUTS[:32]).sum() + pst.kl(twin) / len(INPUTS)).backward()
    trainer = lightning.Trainer(
        accelerator="cpu", callbacks=[bayesian, Watch()], logger=False, enable_progress_bar=False, max_steps=1,
        enable_model_summary=False, enable_checkpointing=False, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(model, loader())
    torch.testing.assert_close(seen[0], [p.grad for p in twin.parameters()])


def test_mean_field_learns_and_ends_on_the_plain_network(tmp_path):
    bayesian = Bayesian(pst.MeanField(), "net", pst.likelihoods.Categorical())
    trained(bayesian, tmp_path, max_epochs=40)
    before = -F.cross_entropy(network()(INPUTS), TARGETS)
    assert bayesian.posterior.predict(INPUTS).log_prob(TARGETS).mean() > before + 0.1
    assert set(bayesian.posterior.mean()) == set(dict(network().named_parameters()))
    pst.save(bayesian.posterior, tmp_path / "q.safetensors")
    pst.load(tmp_path / "q.safetensors", network())


def test_micro_batches_count_the_penalty_once(tmp_path):
    method = pst.MAP(prior=pst.priors.Laplace(0.1))
    whole, parts = (Bayesian(method, "net", pst.likelihoods.Categorical()) for _ in range(2))

    class Whole(Classifier):
        def train_dataloader(self):
            return DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=96)

    trainer = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    lightning.Trainer(**trainer, enable_model_summary=False, callbacks=[whole], max_epochs=3).fit(Whole())
    trained(parts, tmp_path, max_epochs=3, accumulate_grad_batches=3)
    torch.testing.assert_close(parts.posterior.mean(), whole.posterior.mean())


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(tmp_path):
    def fresh() -> Bayesian:
        return Bayesian(pst.SWAG(rank=3, start=0, every=2), "net", pst.likelihoods.Categorical())

    whole, first, second = fresh(), fresh(), fresh()
    trained(whole, tmp_path)
    options = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    half = lightning.Trainer(callbacks=[first, StopAfter(2)], max_epochs=4, default_root_dir=tmp_path, **options)
    half.fit(Classifier(), loader())
    half.save_checkpoint(tmp_path / "half.ckpt")
    rest = lightning.Trainer(callbacks=[second, StopAfter(9)], max_epochs=4, default_root_dir=tmp_path, **options)
    rest.fit(Classifier(), loader(), ckpt_path=tmp_path / "half.ckpt")
    torch.testing.assert_close(second.posterior.mean(), whole.posterior.mean())
    torch.testing.assert_close(second.posterior.variance(), whole.posterior.variance())


class StopAfter(lightning.Callback):
    """Stops a run after so many epochs."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs

    def on_train_epoch_end(self, trainer, module):
        trainer.should_stop = trainer.current_epoch + 1 >= self.epochs


class Early(lightning.Callback):
    """What Lightning's EarlyStopping does."""

    def on_train_epoch_end(self, trainer, pl_module):
        trainer.should_stop = trainer.current_epoch == 1


@pytest.mark.parametrize(
    ("method", "match"),
    [(pst.SGLD(lr=1e-3, burn_in=0, thin=2), "the chain gave 3 samples"), (pst.SparseVD(), "before fine-tuning")],
    ids=repr,
)
def test_what_the_method_finds_suspicious_is_said_at_the_end(method, match, tmp_path):
    bayesian = Bayesian(method, "net", pst.likelihoods.Categorical())
    with pytest.warns(pst.PosterityWarning, match=match):
        trained(bayesian, tmp_path, callbacks=[bayesian, Early()])


def test_bad_input_is_refused(tmp_path):
    categorical = pst.likelihoods.Categorical()
    with pytest.raises(pst.PosterityError, match="Classifier has no network called 'model'"):
        trained(Bayesian(pst.MAP(), "model", categorical), tmp_path)
    with pytest.raises(pst.PosterityError, match="accumulate_grad_batches"):
        trained(Bayesian(pst.IVON(), "net", categorical), tmp_path, accumulate_grad_batches=2)
    with pytest.raises(pst.PosterityError, match="max_epochs or max_steps"):
        trained(Bayesian(pst.MAP(), "net", categorical), tmp_path, max_epochs=-1)
    with pytest.raises(pst.PosterityError, match="give the std"):
        Bayesian(pst.MAP(), "net", pst.likelihoods.Gaussian())
    for method, likelihood in (("map", categorical), (pst.MAP(), "Categorical")):
        with pytest.raises(pst.PosterityError, match="expected a method and a likelihood"):
            Bayesian(method, "net", likelihood)
    for batches in ([(INPUTS, TARGETS)], DataLoader(Endless(), batch_size=8)):
        with pytest.raises(pst.PosterityError, match="number of examples cannot be read off"):
            trained(Bayesian(pst.MAP(), "net", categorical), tmp_path, batches=batches, max_steps=4)
    manual = Classifier()
    manual.automatic_optimization = False
    with pytest.raises(pst.PosterityError, match="manual optimization"):
        trained(Bayesian(pst.MAP(), "net", categorical), tmp_path, manual)
