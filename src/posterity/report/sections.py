"""What the page shows below the table, by kind of task and data: which figures, in which order, and what they mean."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from matplotlib.figure import Figure

from posterity.evaluation.metrics import metric
from posterity.report import plots
from posterity.report.chains import CHAIN_HEAD, chain_row
from posterity.report.plots.select import chosen, detail
from posterity.report.standing import RANKS, done, standings
from posterity.report.verdict import label

__all__ = ["Panel", "Section", "sections"]

Draw = Callable[[], Figure]
Results = Mapping[str, Any]

_SHOWN = 4
"""How many of the best methods show their examples."""


@dataclass(frozen=True)
class Panel:
    """One figure of the page, narrow enough for a phone; the caption is for those who cannot see it."""

    name: str
    caption: str
    draw: Draw


@dataclass(frozen=True)
class Section:
    """A headed part of the page.

    Attributes:
        anchor: Its id.
        short: Its name in the list of links.
        title: Its head.
        about: One or two sentences on how to read it.
        panels: The page's figures.
        papers: The figures that are written as files, with all methods side by side, as a paper would print them; a
            panel of the same name is the same figure.
        size: How wide its panels are: ``small``, ``middle`` or ``wide``.
        half: Whether it may stand beside another.
        extra: Further HTML.
    """

    anchor: str
    short: str
    title: str
    about: str
    panels: tuple[Panel, ...]
    papers: Mapping[str, Draw] = field(default_factory=dict)
    size: str = "middle"
    half: bool = False
    extra: str = ""


def sections(results: Results) -> list[Section]:
    """The parts that these results can fill."""
    if not done(results):
        return []
    makers = _CLASSES if results["task"] == "classification" else _NUMBERS
    return [section for make in makers if (section := make(results)) is not None]


def _each(results: Results, name: str, key: str, draw: Callable[..., Figure]) -> tuple[Panel, ...]:
    """One panel a method, the best first."""
    order, have = _ranked(results), set(chosen(results, None, key))
    return tuple(Panel(f"{name}-{m}", f"{label(m)}: {name}", partial(draw, results, [m])) for m in order if m in have)


def _ranked(results: Results) -> list[str]:
    return [line.name for line in standings(results) if line.cells]


def _alone(results: Results, name: str, draw: Callable[..., Figure], words: tuple[str, str, str]) -> Section:
    """A section of one figure, which may stand beside another."""
    short, title, about = words
    drawn = partial(draw, results)
    return Section(name, short, title, about, (Panel(name, title, drawn),), {name: drawn}, "wide", half=True)


def _reliability(results: Results) -> Section:
    about = (
        "Among answers given with 80% confidence, 80% should be right: bars on the dotted line. "
        "Open boxes show the gap; the grey bars below, how many answers fall into each bin."
    )
    panels = _each(results, "reliability", "reliability", plots.reliability)
    papers = {"reliability": partial(plots.reliability, results)}
    return Section(
        "reliability", "Reliability", "Is the confidence to be believed?", about, panels, papers, size="small"
    )


def _tempered(results: Results) -> Section | None:
    if not any("temperature" in run["figures"] for run in done(results)):
        return None
    about = (
        "One number, found on the validation part, divides every logit. "
        "Cheap, and often all that calibration needs; it hardly changes who is right."
    )
    panels = tuple(
        Panel(
            f"temperature-{name}", f"{metric(name).label}, tempered", partial(plots.temperature, results, figure=name)
        )
        for name in ("ece", "nll")
    )
    papers = {"temperature": partial(plots.temperature, results)}
    return Section("temperature", "Temperature", "After temperature scaling", about, panels, papers)


def _entropies(results: Results) -> Section:
    about = (
        "Inputs of another kind should leave the network unsure: their entropies should lie to the right of the grey "
        "ones. The share axis is stretched near zero."
    )
    panels = _each(results, "entropies", "entropy", plots.entropies)
    papers = {"entropies": partial(plots.entropies, results)}
    return Section("foreign", "Foreign inputs", "Does it notice inputs of another kind?", about, panels, papers)


def _selective(results: Results) -> Section:
    about = "If only the most certain examples are answered and the rest go to someone else, how often is it right?"
    return _alone(results, "coverage", plots.coverage, ("Coverage", "Answering only when sure", about))


def _classes(results: Results) -> Section:
    about = "How far the stated probability of each class is from its frequency, in percentage points."
    return _alone(results, "classes", plots.classes, ("Classes", "Calibration over classes", about))


def _cost(results: Results) -> Section | None:
    if not any({RANKS, "train_time"} <= line.cells.keys() for line in standings(results)):
        return None  # times are relative to MAP, which may have failed
    about = "Lower left is better: a lower NLL for less training time."
    return _alone(results, "cost", plots.cost, ("Cost", "Quality against cost", about))


def _training(results: Results) -> Section | None:
    if not any(run["history"] for run in done(results)):
        return None
    about = "The loss that each method minimised; methods with a penalty of their own are not on one scale."
    return _alone(results, "training", plots.training, ("Training", "Training curves", about))


def _shift(results: Results) -> Section | None:
    methods = chosen(results, None, "shift")
    if not methods:
        return None
    first = detail(results, methods[0], "shift")[0]
    about = (
        f"The same test inputs, step by step further from what was learned, averaged over {', '.join(first)}. "
        "Getting worse is fair; staying sure of it is not."
    )
    panels = tuple(
        Panel(f"shift-{n}", f"{metric(n).label} against severity", partial(plots.shift, results, figures=[n]))
        for n in next(iter(first.values()))
    )
    papers = {"shift": partial(plots.shift, results)}
    return Section("shift", "Shift", "When the world moves away from the training data", about, panels, papers)


def _draws(results: Results) -> Section | None:
    if not chosen(results, None, "draws"):
        return None
    about = "As a rule averaging more networks soon stops helping the error, and goes on helping the NLL for longer."
    panels = tuple(
        Panel(f"draws-{n}", f"{n} against the number of draws", partial(plots.draws, results, figures=[n]))
        for n in ("error", "nll")
    )
    papers = {"draws": partial(plots.draws, results)}
    return Section("draws", "Draws", "How many draws are worth it?", about, panels, papers)


def _chains(results: Results) -> Section | None:
    methods = [m for m in _ranked(results) if m in chosen(results, None, "chains")]
    if not methods:
        return None
    about = (
        "Chains are compared by what they predict on held-out inputs, one colour for each chain. Split-R̂ near 1 and "
        "many effective samples say that they have found the same distribution: the median over predictions, the worst "
        "5% and the very worst, averaged over seeds; notes are of the seed that mixed worst. Disagreement is the total "
        "variation between two chains' probabilities (for numbers: the distance of their means in standard deviations)."
    )
    found = {m: detail(results, m, "chains") for m in methods}
    head = "".join(f'<th scope="col">{html.escape(text)}</th>' for text in ("method", *CHAIN_HEAD))
    rows = "".join(_row(label(m), chain_row(seeds)) for m, seeds in found.items())
    table = f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    worst = {m: max(seeds, key=_largest_rhat) for m, seeds in found.items()}
    told = [f"{label(m)}: {'; '.join(chains['symptoms'])}." for m, chains in worst.items() if chains["symptoms"]]
    notes = "".join(f'<p class="note">{html.escape(text)}</p>' for text in told)
    panels = _each(results, "chains", "chains", plots.chains)
    papers = {"chains": partial(plots.chains, results)}
    title = "Have the chains found the same distribution?"
    return Section("chains", "Chains", title, about, panels, papers, extra=table + notes)


def _largest_rhat(chains: Mapping[str, Any]) -> float:
    """Of the worst prediction; JSON knows no infinity."""
    found = chains["rhat"][-1]
    return math.inf if found is None else found


def _row(name: str, texts: list[str]) -> str:
    cells = "".join(f"<td>{html.escape(text)}</td>" for text in texts)
    return f'<tr><th scope="row">{html.escape(name)}</th>{cells}</tr>'


def _examples(results: Results) -> Section | None:
    order = _ranked(results)[:_SHOWN]
    found = detail(results, order[0], "examples")[0]
    if found and "text" in found[0]:
        return _texts(results, order)
    if not found or "picture" not in found[0]:
        return None
    about = (
        "The six test examples that each method is least sure of, then the six it is surest of. Bars: class "
        "probabilities, the true class in green. Strip below: the uncertainty that more data would not remove "
        "(aleatoric, blue) and that it would (epistemic, orange)."
    )
    draws: dict[str, Draw] = {f"examples-{m}": partial(plots.examples, results, m) for m in order}
    panels = tuple(Panel(f"examples-{m}", f"{label(m)}: examples", draws[f"examples-{m}"]) for m in order)
    return Section("examples", "Examples", "What it is sure of, and what it is not", about, panels, draws, "wide")


def _texts(results: Results, order: list[str]) -> Section:
    """The most uncertain sentences."""
    names, blocks = results["classes"], []
    for method in order:
        found = detail(results, method, "examples")[0]
        lines = "".join(_sentence(example, names) for example in found[: len(found) // 2])
        blocks.append(f"<h3>{html.escape(label(method))}</h3><ol class='texts'>{lines}</ol>")
    about = "The test sentences that the best methods are least sure of: what they are taken for, and what they are."
    return Section("examples", "Examples", "The most uncertain sentences", about, (), extra="".join(blocks))


def _sentence(example: Mapping[str, Any], names: list[str]) -> str:
    said, truth = names[example["label"]], names[example["target"]]
    parts = f"aleatoric {example['aleatoric']:.2f}, epistemic {example['epistemic']:.2f} nats"
    told = f"{said} ({100 * max(example['probs']):.0f}%), is {truth}; {parts}"
    return f"<li>{html.escape(example['text'])}<br><span class='note'>{html.escape(told)}</span></li>"


def _surfaces(results: Results) -> Section | None:
    if not chosen(results, None, "surface"):
        return None
    about = "The boundary of the mean, those of single draws, and where the mean is unsure, as it should be far away."
    panels = _each(results, "surfaces", "surface", plots.surfaces)
    papers = {"surfaces": partial(plots.surfaces, results)}
    return Section("surfaces", "Surfaces", "Decision boundaries", about, panels, papers, "wide")


def _band(results: Results) -> Section:
    about = "The outer band is where 95% of the targets should lie, the inner one the part that more data would remove."
    panels = _each(results, "band", "band", plots.band)
    papers = {"band": partial(plots.band, results)}
    return Section("band", "Bands", "Predictions with their uncertainty", about, panels, papers)


def _intervals(results: Results) -> Section:
    about = (
        "A 90% interval should hold 90% of the targets, and so on. Where targets fall in their predicted distributions "
        "should be uniform: a hump means too wide, a valley too narrow."
    )
    first = Panel("intervals", "coverage against level", partial(plots.intervals, results))
    panels = (first, *_each(results, "pit", "pit", plots.pit))
    papers: dict[str, Draw] = {"intervals": first.draw, "pit": partial(plots.pit, results)}
    return Section("intervals", "Intervals", "Do the intervals hold what they say?", about, panels, papers)


_CLASSES: tuple[Callable[[Results], Section | None], ...] = (
    _reliability,
    _tempered,
    _entropies,
    _selective,
    _cost,
    _examples,
    _surfaces,
    _shift,
    _draws,
    _chains,
    _classes,
    _training,
)
_NUMBERS: tuple[Callable[[Results], Section | None], ...] = (
    _band,
    _intervals,
    _shift,
    _draws,
    _chains,
    _cost,
    _training,
)
