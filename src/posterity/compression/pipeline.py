"""From a posterior to a small network in one call: score, mask, compact, measure, keep what is faster.

Mean and variance give scores, scores give masks, and a masked network can be run in several forms: dense, compacted,
compacted with some layers sparse. All of them are timed, and the fastest is returned that is nowhere slower than the
masked dense network.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from posterity import calling, masks
from posterity.calling import InputSpec
from posterity.compression import files
from posterity.compression.compact import Compacted, compact, silenced
from posterity.compression.criterion import Criterion, accuracy, choose
from posterity.compression.files import Bits
from posterity.compression.flops import flops
from posterity.compression.layers import SparseLinear, with_faster_layers
from posterity.compression.report import Compression, LayerReport
from posterity.compression.speed import ratio, rows, timings
from posterity.compression.trace import Network, trace
from posterity.data.pieces import pieces, to_choose_by
from posterity.devices import device_of
from posterity.files import write_state
from posterity.networks import plain_copy
from posterity.posteriors.base import Posterior, WeightPosterior
from posterity.posteriors.mixture import Mixture
from posterity.random import generator_for
from posterity.types import Inputs, Params, PosterityError

__all__ = ["CompressedNetwork", "compress", "made_up"]

_BATCHES = (1, 128)
_REFERENCE, _DENSE, _COMPACTED = "as it was", "masked dense", "compacted"
_NOISE = 1.05
"""Times closer than this are called equal: two timings of one network differ by up to 3%."""


class CompressedNetwork(Network):
    """An ordinary, smaller network that knows how it came about."""

    @property
    def compression(self) -> Compression:
        """What the compression did, in figures."""
        return self.meta["compression"]

    def save(self, path: str | Path) -> int:
        """Write the weights that are left, for ``load`` into the plain network; returns the bytes on disk."""
        write_state(path, self.meta["packed"], "compressed network")
        return Path(path).stat().st_size


def compress(
    subject: Posterior | nn.Module,
    *,
    threshold: float | None = None,
    keep: float | None = None,
    max_drop: float | None = None,
    per_layer: bool = False,
    validation: Any = None,
    example: Inputs | None = None,
    bits: Bits | Literal["variance"] = None,
) -> CompressedNetwork:
    """A smaller network that computes what the pruned one would.

    Without a criterion, what a method has pruned (SparseVD, Pruning, …) and plain networks keep the zeros they have;
    any other posterior with variances is pruned at log alpha 3.

    Args:
        subject: A posterior over weights (pruned by signal to noise), or a plain network (by magnitude).
        threshold: Prune the weights whose log alpha is at least this; needs variances.
        keep: Keep this fraction of the weights.
        max_drop: Keep as few as lose at most this much validation accuracy.
        per_layer: Count ``keep`` and ``max_drop`` within each layer.
        validation: (inputs, labels), a Dataset, a loader, a list of batches, or a DataSet (its validation part); its
            accuracies go into the report.
        example: Inputs to trace and time with; taken from the posterior or the validation data if not given.
        bits: Quantise the weights to so many bits, all or by name; ``"variance"`` takes what the posterior's own
            spread makes worth storing (``bits_from_variance``).

    Returns:
        The network, in evaluation mode, with its ``compression`` report.
    """
    criterion = Criterion(threshold, keep, max_drop, per_layer)
    validation = to_choose_by(validation)
    if validation is not None and isinstance(subject, Posterior) and not subject.likelihood.classifies:
        kind = type(subject.likelihood).__name__
        raise PosterityError(f"validation gives accuracies, and {kind} predicts numbers: give keep= or threshold=")
    dense, variance = _network_and_variance(subject)
    device = device_of(dense)
    example = calling.map_inputs(_example(subject, dense, validation, example), lambda tensor: tensor.to(device))
    _check_called(dense, example)
    decided = isinstance(subject, WeightPosterior) and subject.pruned
    chosen = choose(criterion, dense, variance, decided, validation, example)
    pruned = masks.apply(dense, chosen)
    packed = files.pack(silenced(pruned, example), _bits(pruned, variance, bits))
    masked = files.unpack(packed, dense)  # as it will be read back: quantised, if so asked
    choice = _fastest(masked, example)
    small = choice.network
    network = CompressedNetwork(small, small.graph)
    network.meta["packed"] = packed
    network.meta["compression"] = Compression(
        layers=_layers(pruned, small),
        parameters=(_numbers(dense), _numbers(small)),
        bytes=(files.dense_bytes(dense), _bytes_on_disk(packed)),
        flops=(flops(dense, example), flops(small, example)),
        latency=choice.latency,
        accuracy=None if validation is None else (accuracy(dense, validation), accuracy(small, validation)),
        form=choice.form,
        notes=(*_unjudged(dense, variance), *_whole(pruned), *choice.notes),
    )
    return network.eval()


def _network_and_variance(subject: Posterior | nn.Module) -> tuple[nn.Module, Params]:
    """The plain network at the posterior's mean, and what variances there are."""
    if isinstance(subject, nn.Module):
        masks.check_own_weights(subject)
        return plain_copy(subject), {}
    if not isinstance(subject, WeightPosterior):
        raise PosterityError(f"{type(subject).__name__} is no distribution over weights, so there is nothing to prune")
    if isinstance(subject, Mixture):  # units of separate restarts do not correspond, and their average knows nothing
        raise PosterityError(
            f"the average of {len(subject.parts)} members is no network: compress one of them, such as "
            "posterior.parts[0], or a run with one member"
        )
    masks.check_own_weights(subject.module)
    dense = plain_copy(subject.module)
    dense.load_state_dict(subject.mean(), strict=False)
    return dense, {name: value for name, value in subject.variance().items() if bool(value.any())}


def _unjudged(dense: nn.Module, variance: Params) -> tuple[str, ...]:
    """A note for networks of which only a part is Bayesian: the rest is not pruned."""
    weights = masks.weights(dict(dense.named_parameters()))
    whole = [name for name, w in weights.items() if name not in variance and bool(w.any())] if variance else []
    said = f"{len(whole)} of {len(weights)} layers' weights have no variance to be judged by, and stay whole"
    return (said,) if whole else ()


def _whole(pruned: nn.Module) -> tuple[str, ...]:
    """A note where not one weight was removed, so that nothing can get smaller."""
    zeros = any(masks.sparsity(dict(pruned.named_parameters())).values())
    return () if zeros else ("no weight was removed: give keep=, max_drop= or a lower threshold=",)


def _example(subject: Posterior | nn.Module, dense: nn.Module, validation: Any, example: Inputs | None) -> Inputs:
    """Inputs to trace and time with: given, from the validation data, or made up from the posterior's record."""
    if example is not None:
        structured = isinstance(example, Mapping | list | tuple)
        return example if structured else calling.as_tensor(example, "the example")
    if validation is not None:
        first = next(pieces(validation, size=1), None)
        if first is None:
            raise PosterityError("the validation data is empty")
        return calling.map_inputs(first.inputs, lambda tensor: tensor[: max(_BATCHES)])
    spec = subject.inputs if isinstance(subject, Posterior) else None
    if spec is None:
        raise PosterityError("compress needs inputs to trace the network with: give example= or validation=")
    return made_up(spec, next(dense.parameters()).dtype)


def _check_called(dense: nn.Module, example: Inputs) -> None:
    calling.check_finite(example)
    try:
        outputs = calling.call(dense, calling.map_inputs(example, torch.clone))  # which it may write into
    except Exception as error:  # whatever the user's forward raises
        reason = str(error).partition("\n")[0]
        raise PosterityError(f"the network cannot be called with these inputs: {reason}") from error
    examples = calling.num_examples(example)
    answers = {len(tensor) for tensor in calling.nested_tensors(outputs) if tensor.ndim}
    if examples == 0 or answers != {examples}:
        raise PosterityError(
            f"the network answers {examples} examples with {' and '.join(map(str, sorted(answers)))} outputs, expected "
            "as many, and not none: the first dimension of its inputs must be the batch"
        )


def made_up(spec: InputSpec, dtype: torch.dtype) -> Inputs:
    """Two rows of Normal noise in the network's type, or of zeros where the inputs are integers."""
    generator, made = generator_for(0), []
    for shape, name in zip(spec.shapes, spec.dtypes, strict=True):
        noise = torch.randn((2, *shape), generator=generator)
        own = getattr(torch, name)
        made.append(noise.to(dtype) if own.is_floating_point else torch.zeros_like(noise).to(own))
    return made[0] if len(made) == 1 else tuple(made)


def _bits(pruned: nn.Module, variance: Params, bits: Bits | Literal["variance"]) -> Bits:
    if bits != "variance":
        return bits
    if not variance:
        raise PosterityError("bits from the variance need a posterior that has one: give a number of bits")
    return files.bits_from_variance({name: p.detach() for name, p in pruned.named_parameters()}, variance)


@dataclass(frozen=True)
class Choice:
    """The form of the masked network that was chosen, and its times."""

    form: str
    network: Network
    latency: dict[int, tuple[float, float]]
    notes: tuple[str, ...]


def _fastest(masked: nn.Module, example: Inputs) -> Choice:
    """The form that is fastest, among those nowhere slower than the masked dense network; of equals the smallest."""
    compacted = compact(masked, example)
    forms = _forms(masked, compacted.module, example)
    times = {batch: timings({_REFERENCE: masked, **forms}, rows(example, batch)) for batch in _BATCHES}
    ratios = {name: [ratio(t[name], t[_REFERENCE]) for t in times.values()] for name in forms}
    best = _best(forms, ratios)
    notes = _notes(compacted)
    if not best.startswith(_COMPACTED):
        worst = max(ratio(t[_COMPACTED], t[best]) for t in times.values())
        notes += (f"the compacted network takes up to {worst:.2f}× the time of the masked one: the dense form is kept",)
    medians = {b: (statistics.median(t[_REFERENCE]), statistics.median(t[best])) for b, t in times.items()}
    return Choice(best, forms[best], medians, notes)


def _best(forms: Mapping[str, Network], ratios: Mapping[str, list[float]]) -> str:
    """The name of the form to take."""
    allowed = {name: sum(ratios[name]) for name in forms if max(ratios[name]) <= _NOISE}
    fastest = min(allowed.values(), default=0.0)
    equals = [name for name, time in allowed.items() if time <= _NOISE * fastest]
    return min(equals, key=lambda name: _numbers(forms[name]), default=_DENSE)


def _forms(masked: nn.Module, compacted: Network, example: Inputs) -> dict[str, Network]:
    """All ways to run the masked network: dense or compacted, reading all inputs or some, with faster layers or not."""
    forms = {_COMPACTED: compacted, _DENSE: trace(masked).to(device_of(masked))}
    if "select_" in compacted.code:
        forms[f"{_COMPACTED}, all inputs read"] = compact(masked, example, select_inputs=False).module
    if device_of(masked).type == "cpu":
        for name, network in list(forms.items()):
            faster, layers = with_faster_layers(network, example, _BATCHES)
            if layers:
                forms[f"{name}, faster layers"] = faster
    return forms


def _notes(compacted: Compacted) -> tuple[str, ...]:
    notes = [f"not followed, so what it reads stays masked: {what}" for what in compacted.not_followed]
    if compacted.constant:
        notes.append("the network is entirely dead: its output is the same for every input")
    return tuple(notes)


def _layers(pruned: nn.Module, small: nn.Module) -> tuple[LayerReport, ...]:
    """Every weight before and after."""
    after = {name: tuple(p.shape) for name, p in small.named_parameters()}
    sparse = {f"{name}.weight": m for name, m in small.named_modules() if isinstance(m, SparseLinear)}
    after |= {name: (m.out_features, m.in_features) for name, m in sparse.items()}
    return tuple(
        LayerReport(name, tuple(p.shape), after.get(name), int((p != 0).sum()), p.numel(), name in sparse)
        for name, p in pruned.named_parameters()
        if p.dim() >= 2
    )


def _numbers(network: nn.Module) -> int:
    """Stored numbers that are weights or biases; of a sparse layer its non-zeros."""
    sparse = sum(m.kept + m.out_features for m in network.modules() if isinstance(m, SparseLinear))
    return sparse + sum(p.numel() for p in network.parameters())


def _bytes_on_disk(packed: Mapping[str, Any]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.safetensors"
        write_state(path, packed, "compressed network")
        return path.stat().st_size
