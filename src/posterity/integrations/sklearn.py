"""scikit-learn estimators: any method and any network, with ``fit``, ``predict`` and ``predict_proba``.

    BayesianClassifier(method=SWAG()).fit(X, y).predict_proba(X)
    mean, std = BayesianRegressor(method=MeanField()).fit(X, y).predict(X, return_std=True)

Inputs, and the targets of a regression, are standardised inside with the statistics of the training data; predictions
come back in the original units. ``posterior_`` is the posterior itself, ``prediction(X)`` all it says about X, where
numbers are in standard units.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from posterity.data import Standardiser
from posterity.evaluation.recipes import sizes
from posterity.methods import MAP, Method
from posterity.models import mlp
from posterity.posteriors import Posterior, WeightPosterior
from posterity.prediction import Classification, Regression
from posterity.probability.likelihoods import Categorical, Gaussian, Likelihood
from posterity.training.config import Training
from posterity.training.fit import fit
from posterity.types import PosterityError

__all__ = ["BayesianClassifier", "BayesianRegressor"]


class _Estimator(BaseEstimator):
    """What both estimators share.

    Args:
        method: How to get the posterior; None is MAP.
        model: A network, or a function of (inputs, outputs) that makes one; None is a perceptron with two hidden layers
            of 100.
        epochs: Passes over the data; None takes what suits its size.
        members: Independent restarts.
        draws: Networks averaged in predictions.
        random_state: All randomness: a number, a RandomState, or None.
        training: Everything else about the loop; None takes what suits the data.
    """

    def __init__(
        self,
        method: Method | None = None,
        model: nn.Module | Callable[[int, int], nn.Module] | None = None,
        *,
        epochs: int | None = None,
        members: int = 1,
        draws: int = 32,
        random_state: Any = None,
        training: Training | None = None,
    ) -> None:
        self.method = method
        self.model = model
        self.epochs = epochs
        self.members = members
        self.draws = draws
        self.random_state = random_state
        self.training = training

    def _fit(self, X: np.ndarray, targets: Tensor, outputs: int, likelihood: Likelihood) -> Self:
        self.standardiser_ = Standardiser.fit(torch.tensor(X, dtype=torch.float64))
        suited = sizes(len(X))
        epochs = suited.epochs if self.epochs is None else self.epochs
        training = self.training or Training(batch_size=suited.batch_size, lr=self._lr(suited.lr), progress=False)
        inputs = self._ready(X)
        posterior = fit(
            self._network(X.shape[1], outputs),
            self.method or MAP(),
            (inputs.float(), targets),
            likelihood=likelihood,
            epochs=None if training.steps else epochs,
            members=self.members,
            seed=int(check_random_state(self.random_state).randint(2**31 - 1)),
            training=training,
        ).to("cpu", torch.float64)  # so that a row's prediction does not depend on the rows around it
        self.posterior_ = self._refreshed(posterior, inputs, targets, training.batch_size)
        return self

    def _refreshed(self, posterior: Posterior, inputs: Tensor, targets: Tensor, batch_size: int) -> Posterior:
        """With the BatchNorm statistics of all draws that predictions average, in their own precision."""
        if not isinstance(posterior, WeightPosterior) or posterior.most_draws is None:
            return posterior  # there is no BatchNorm, or every point has statistics of its own
        batches = max(1, len(inputs) // batch_size)  # none of which has a single row
        return posterior.refresh(
            list(zip(inputs.tensor_split(batches), targets.tensor_split(batches), strict=True)), self.draws
        )

    def _lr(self, suited: float) -> float | None:
        """Larger steps for few data, where the plain optimizer trains; other methods know better themselves."""
        return suited if self.method is None or type(self.method) is MAP else None

    def _network(self, inputs: int, outputs: int) -> nn.Module | Callable[[], nn.Module]:
        model = self.model
        if model is None:
            return lambda: mlp(inputs, outputs)
        if isinstance(model, nn.Module):
            return model
        if not callable(model):
            raise PosterityError(f"model must be a network or a function of (inputs, outputs), got {model!r}")
        return lambda: model(inputs, outputs)

    def _ready(self, X: np.ndarray) -> Tensor:
        return self.standardiser_.apply(torch.tensor(X, dtype=torch.float64))

    def _predict(self, X: Any) -> Any:
        check_is_fitted(self)
        return self.posterior_.predict(self._ready(validate_data(self, X, reset=False)), self.draws)


class BayesianClassifier(ClassifierMixin, _Estimator):
    """A classifier that says how sure it is.

    Attributes:
        classes_: The labels, in the order of ``predict_proba``'s columns.
        posterior_: The posterior over networks.
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Fit a posterior to labelled rows."""
        X, y = validate_data(self, X, y, ensure_min_samples=2)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise PosterityError(f"a classifier needs at least two classes, got one class: {self.classes_[0]!r}")
        self._fit(X, torch.as_tensor(labels, dtype=torch.int64), len(self.classes_), Categorical())
        outputs = self.prediction(X[:1]).probs.shape[1]
        if outputs != len(self.classes_):
            raise PosterityError(f"the network has {outputs} outputs, and there are {len(self.classes_)} classes")
        return self

    def prediction(self, X: Any) -> Classification:
        """Probabilities, labels (as numbers), entropy and its aleatoric and epistemic parts."""
        return self._predict(X)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Class probabilities, averaged over draws."""
        probs = self.prediction(X).probs.double().numpy()
        return probs / probs.sum(1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable label of each row."""
        most = self.predict_proba(X).argmax(1)
        return self.classes_[most]


class BayesianRegressor(RegressorMixin, _Estimator):
    """A regression that says how sure it is.

    Attributes:
        posterior_: The posterior over networks, of standardised targets.
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Fit a posterior to rows with numbers."""
        X, y = validate_data(self, X, y, y_numeric=True, ensure_min_samples=2)
        targets = torch.tensor(y, dtype=torch.float64)[:, None]
        self.target_standardiser_ = Standardiser.fit(targets)
        return self._fit(X, self.target_standardiser_.apply(targets).float(), 1, Gaussian())

    def prediction(self, X: Any) -> Regression:
        """The predictive distributions, in standardised units."""
        return self._predict(X)

    def predict(self, X: Any, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """The mean of each row's target, and with ``return_std`` its standard deviation, noise included."""
        found, units = self.prediction(X), self.target_standardiser_
        mean = units.invert(found.mean.double())[:, 0].numpy()
        return (mean, (found.std.double() * units.std)[:, 0].numpy()) if return_std else mean
