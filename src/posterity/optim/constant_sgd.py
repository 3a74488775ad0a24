"""SGD with a constant learning rate as approximate Bayesian inference (Mandt, Hoffman & Blei 2017, 1704.04289).

Near a minimum, with the mean loss ½ wᵀA w and per-example gradients of covariance C, steps w ← w − lr g on batches of S
examples are an Ornstein–Uhlenbeck process. It settles in a Gaussian of covariance Σ, while the posterior of N examples
is N(0, (N A)⁻¹):

    A Σ + Σ A = (lr/S) C                                                         ``stationary_covariance``

The paper's five points, a function each (D weights; friction = 1 − momentum):

    1  the rate at which Σ comes closest to the posterior, in KL(q‖p)            ``best_lr``
           lr* = 2 S D/(N tr C);    with a preconditioner, H* = 2 S/(lr N) C⁻¹,  ``best_preconditioner``
           which is exact (its diagonal form where A and C are diagonal)
    2  hyper-parameters by variational EM: the prior precision that fits
           the stationary law, λ = D/E‖w‖²                                       ``best_prior_precision``
    3  momentum is a larger step, Σ grows by 1/friction: lr* = 2 friction S D/(N tr C)
    4  samplers at a finite step are biased by the gradients' noise:
           SGLD:  A Σ + Σ A = (lr/S) C + (2 T/N) I                               ``langevin_covariance``
           Fisher scoring, w ← w − lr H g + √lr H E ξ, is exact with
           H* = (2/N)((lr/S) C + E Eᵀ)⁻¹                                         ``best_fisher_scoring``
    5  iterate averages are optimal: the mean over a window of t steps has covariance
           A⁻¹ C A⁻¹/(S t), which for t = N/S (one pass) and C = A (a model that fits) is the posterior's,
           whatever the learning rate                              ``averaged_covariance``, ``best_window``

All matrices are [D, D] in mean-loss units; variances, not standard deviations.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posterity.types import PosterityError, check_positive

__all__ = [
    "averaged_covariance",
    "best_fisher_scoring",
    "best_lr",
    "best_preconditioner",
    "best_prior_precision",
    "best_window",
    "gradient_noise",
    "kl_to_posterior",
    "langevin_covariance",
    "stationary_covariance",
]


def gradient_noise(gradients: Tensor) -> Tensor:
    """C: the covariance of per-example gradients [N, D] at the minimum."""
    return gradients.T.cov().reshape(gradients.shape[1], gradients.shape[1])


def stationary_covariance(
    hessian: Tensor,
    noise: Tensor,
    lr: float,
    batch_size: int,
    *,
    momentum: float = 0.0,
    preconditioner: Tensor | None = None,
) -> Tensor:
    """Σ of constant SGD: M Σ + Σ Mᵀ = lr/(S friction) H C Hᵀ with M = H A.

    Args:
        hessian: A, of the mean loss.
        noise: C, the covariance of one example's gradient.
        lr: Learning rate.
        batch_size: S.
        momentum: Of heavy-ball SGD, v ← momentum·v − lr g.
        preconditioner: H in w ← w − lr H g; the identity if not given.
    """
    check_positive(lr=lr, batch_size=batch_size)
    h = torch.eye(len(hessian), dtype=hessian.dtype) if preconditioner is None else preconditioner
    return _lyapunov(h @ hessian, lr / (batch_size * (1 - momentum)) * h @ noise @ h.T)


def langevin_covariance(
    hessian: Tensor, noise: Tensor, lr: float, batch_size: int, num_data: int, temperature: float = 1.0
) -> Tensor:
    """Σ of SGLD at a small but finite step: the posterior's T/N A⁻¹, plus what the gradients' noise adds."""
    injected = 2 * temperature / num_data * torch.eye(len(hessian), dtype=hessian.dtype)
    return _lyapunov(hessian, lr / batch_size * noise + injected)


def best_lr(noise: Tensor, batch_size: int, num_data: int, *, momentum: float = 0.0) -> float:
    """The constant learning rate whose stationary law is closest to the posterior: 2 friction S D/(N tr C)."""
    trace = float(noise.trace())
    check_positive(batch_size=batch_size, num_data=num_data, trace=trace)
    return 2 * (1 - momentum) * batch_size * len(noise) / (num_data * trace)


def best_preconditioner(noise: Tensor, lr: float, batch_size: int, num_data: int, *, diagonal: bool = False) -> Tensor:
    """H that makes constant SGD's law the posterior's: 2 S/(lr N) C⁻¹, or the same with the diagonal of C."""
    scale = 2 * batch_size / (lr * num_data)
    return scale * (noise.diag().reciprocal().diag() if diagonal else torch.linalg.inv(noise))


def best_fisher_scoring(noise: Tensor, injected: Tensor, lr: float, batch_size: int, num_data: int) -> Tensor:
    """H of w ← w − lr H g + √lr H E ξ, with E Eᵀ = ``injected``, that samples the posterior."""
    return 2 / num_data * torch.linalg.inv(lr / batch_size * noise + injected)


def best_prior_precision(iterates: Tensor) -> float:
    """The M-step of variational EM for a prior N(0, I/λ): λ = D/E‖w‖² over the iterates [n, D] of constant SGD."""
    return iterates.shape[1] / float(iterates.square().sum(1).mean())


def best_window(num_data: int, batch_size: int) -> int:
    """Steps to average over so that an average is a draw from the posterior: one pass over the data."""
    return max(1, round(num_data / batch_size))


def averaged_covariance(hessian: Tensor, noise: Tensor, batch_size: int, window: int) -> Tensor:
    """Covariance of the mean of ``window`` successive iterates, for windows much longer than the chain's memory."""
    inverse = torch.linalg.inv(hessian)
    return inverse @ noise @ inverse / (batch_size * window)


def kl_to_posterior(covariance: Tensor, hessian: Tensor, num_data: int) -> float:
    """KL(N(0, Σ) ‖ N(0, (N A)⁻¹)): how far a stationary law is from the posterior."""
    product = num_data * hessian @ covariance
    sign, log_det = torch.linalg.slogdet(product)
    if sign <= 0:
        raise PosterityError("the covariance and the Hessian must be positive definite")
    return 0.5 * float(product.trace() - log_det - len(hessian))


def _lyapunov(drift: Tensor, diffusion: Tensor) -> Tensor:
    """X of M X + X Mᵀ = Q, in the eigenbasis of M; stable M have eigenvalues of positive real part."""
    values, vectors = torch.linalg.eig(drift)
    if bool((values.real <= 0).any()):
        raise PosterityError("the Hessian must be positive definite: there is no stationary law without a minimum")
    inverse = torch.linalg.inv(vectors)
    inner = inverse @ diffusion.to(values.dtype) @ inverse.T / (values[:, None] + values[None, :])
    return (vectors @ inner @ vectors.T).real
