"""``report.html``: one file with everything in it, for a browser, a phone or a printer, without a network.

Takes results (what ``compare`` gives, or results.json), never models.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from posterity.evaluation.metrics import metric
from posterity.files import write_bytes
from posterity.report import style
from posterity.report.sections import Draw, Panel, Section, sections
from posterity.report.standing import Cell, Standing, columns, done, standings
from posterity.report.tables import mark, shown
from posterity.report.verdict import label, verdict
from posterity.types import PosterityError

__all__ = ["document", "page", "read_results", "write_report"]

Drawn = tuple[Figure, str]
"""A figure, and the same as an SVG file."""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""What the browser may do with the page: nothing that leaves it."""


def write_report(results: Mapping[str, Any], folder: Path) -> Path:
    """Write report.html, and every figure as SVG and PNG under figures/; the path of the page."""
    drawn: dict[str, Drawn] = {}
    write_bytes(folder / "report.html", page(results, drawn).encode())
    for section in sections(results):
        for name, draw in section.papers.items():
            made, text = drawn.get(name) or _drawn(name, draw)
            write_bytes(folder / "figures" / f"{name}.svg", text.encode())
            write_bytes(folder / "figures" / f"{name}.png", style.png(made))
    return folder / "report.html"


def read_results(path: Path) -> dict[str, Any]:
    """The results of a comparison's folder or file."""
    path = path / "results.json" if path.is_dir() else path
    try:
        results = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise PosterityError(f"{path} holds no readable results: {error}") from error
    if not isinstance(results, dict) or not {"methods", "runs", "task"} <= results.keys():
        raise PosterityError(f"{path} is not a comparison's results.json")
    return results


def page(results: Mapping[str, Any], drawn: dict[str, Drawn] | None = None) -> str:
    """The whole page.

    Args:
        results: What ``compare`` gives, or results.json holds.
        drawn: Collects the figures by name, for those who need them once more.
    """
    parts, drawn = sections(results), {} if drawn is None else drawn
    title = f"{results['title']}: which posterior to trust"
    links = "".join(f'<a href="#{part.anchor}">{html.escape(part.short)}</a>' for part in parts)
    made = [(part.half, _section(part, drawn)) for part in parts]
    groups = [(half, "".join(text for _, text in group)) for half, group in groupby(made, key=lambda pair: pair[0])]
    body = "".join(f'<div class="halves">{text}</div>' if half else text for half, text in groups)
    main = f"""<p class="verdict">{html.escape(verdict(results))}</p>
{_table(results)}
<nav aria-label="sections">{links}<a href="#made">How it was made</a></nav>
{body}
{_made(results)}"""
    return document(title, _subtitle(results), main, str(results["about"]["versions"]["posterity"]))


def document(title: str, subtitle: str, main: str, version: str) -> str:
    """A page around its main part (HTML): head, style, theme button, sorting, and a policy against all else."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{html.escape(title)}</title>
<style>{_asset("page.css")}</style>
</head>
<body>
<header><div><h1>{html.escape(title)}</h1><p>{html.escape(subtitle)}</p></div>
<button id="theme" type="button">dark</button></header>
<main>
{main}
<footer>Made by posterity {html.escape(version)}.</footer>
</main>
<script>{_asset("page.js")}</script>
</body>
</html>
"""


def _asset(name: str) -> str:
    return (files("posterity.report") / "assets" / name).read_text()


def _subtitle(results: Mapping[str, Any]) -> str:
    about, kind = results["about"], results["task"]
    sizes, config = about["examples"], about["config"]
    data = f"{sizes['train']:,} training, {sizes['validation']:,} validation and {sizes['test']:,} test examples"
    seeds = f"{config['seeds']} seed{'s' if config['seeds'] > 1 else ''}"
    return f"{kind} with {config['model']} ({about['parameters']:,} parameters); {data}; {seeds}"


def _table(results: Mapping[str, Any]) -> str:
    """The ranked table, sortable by every column."""
    names = columns(results)
    heads = ['<th scope="col" aria-label="method"><button type="button">method</button></th>']
    for name in names:
        known = metric(name)
        first = "descending" if known.better > 0 else "ascending"
        sort = f' aria-sort="{first}"' if name == "nll" else ""
        tip = html.escape(known.meaning, quote=True)
        heads.append(
            f'<th scope="col" data-first="{first}"{sort} title="{tip}">'
            f'<button type="button">{html.escape(known.label)}</button></th>'
        )
    rows = "".join(_row(results, line, names) for line in standings(results))
    runs = max((line.seeds for line in standings(results)), default=1)
    errors = "± is the standard error over seeds" if runs > 1 else "± is the standard error over resampled test sets"
    return (
        f'<div class="scroll" tabindex="0"><table class="sortable" id="ranking"><thead><tr>{"".join(heads)}</tr>'
        f"</thead><tbody>{rows}</tbody></table></div>"
        f'<p class="note">★ best, ● statistically tied with it: within two standard errors of the difference, over '
        f"resampled test sets (paired) and seeds. {errors}. Times are relative to MAP. "
        "Click a column to sort; hold the pointer over its head to see what it means.</p>"
    )


def _row(results: Mapping[str, Any], line: Standing, names: list[str]) -> str:
    name = html.escape(label(line.name))
    index = list(results["methods"]).index(line.name)
    dot = f'<span class="swatch" style="background:{style.colour(index)}"></span>'
    head = f'<th scope="row" data-value="{name}">{dot}{name}</th>'
    if not line.cells:
        return f'<tr>{head}<td class="failed" colspan="{len(names)}">failed: {html.escape(line.reason)}</td></tr>'
    return f"<tr>{head}{''.join(_cell(name, line.cells.get(name)) for name in names)}</tr>"


def _cell(name: str, cell: Cell | None) -> str:
    if cell is None:
        return "<td>–</td>"
    value, _, error = shown(name, cell).partition(" ± ")
    spread = f'<span class="pm">± {error}</span>' if error else ""
    kind = ' class="tied"' if cell.tied else ""
    sign = f'<span class="mark">{mark(cell)}</span>' if cell.tied else ""
    return f'<td{kind} data-value="{cell.value:.8g}">{sign}{value}{spread}</td>'


def _section(part: Section, drawn: dict[str, Drawn]) -> str:
    inner = "".join(_panel(panel, drawn) for panel in part.panels)
    grid = f'<div class="grid {part.size}">{inner}</div>' if inner else ""
    return (
        f'<section id="{part.anchor}"><h2>{html.escape(part.title)}</h2><p>{html.escape(part.about)}</p>'
        f"{grid}{part.extra}</section>"
    )


def _panel(panel: Panel, drawn: dict[str, Drawn]) -> str:
    _, text = drawn[panel.name] = _drawn(panel.name, panel.draw)
    return f"<figure>{style.inline(text, panel.caption)}</figure>"


def _drawn(name: str, draw: Draw) -> Drawn:
    made = draw()
    return made, style.svg(made, name)


def _made(results: Mapping[str, Any]) -> str:
    """Config, settings chosen, versions, time."""
    about = results["about"]
    config = {
        key: ", ".join(value) if isinstance(value, list | tuple) else value for key, value in about["config"].items()
    }
    rows = {
        **{key.replace("_", " "): value for key, value in config.items() if value not in ("", None)},
        "batch size": about["batch_size"],
        "foreign inputs": ", ".join(about["foreign"]) or "none",
        "device": about["device"],
        "versions": ", ".join(f"{name} {number}" for name, number in about["versions"].items()),
        "time": f"{about['seconds']:.0f} s, {about['date']}",
    }
    listed = "".join(f"<dt>{html.escape(k)}</dt><dd>{html.escape(str(v))}</dd>" for k, v in rows.items())
    told = "chosen by the NLL on the validation part, never on test data"
    chosen = told if config["tune"] else "each method's first; no others were tried"
    temperatures = " Temperatures were fitted on the validation part." if results["task"] == "classification" else ""
    return (
        f'<section id="made"><h2>How it was made</h2><p>Settings were {chosen}.{temperatures}</p>'
        f"<dl>{listed}</dl>{_settings(results)}</section>"
    )


def _found(tried: Mapping[str, Any]) -> str:
    return f"failed ({tried['reason']})" if tried["validation_nll"] is None else f"{tried['validation_nll']:.4f}"


def _settings(results: Mapping[str, Any]) -> str:
    """What each method ran with, what else was tried, and what the doctor said."""
    lines = []
    for method in results["methods"]:
        for run in done(results, method)[:1]:
            tried = "; ".join(f"{t['method']}: {_found(t)}" for t in run["tried"])
            warned = "; ".join(run.get("warnings", ()))
            text = f"<code>{html.escape(run['method_repr'])}</code>, {run['epochs']} epochs"
            text += f"<br>validation NLL: <code>{html.escape(tried)}</code>" if tried else ""
            text += f"<br>warned: {html.escape(warned)}" if warned else ""
            lines.append(f"<dt>{html.escape(label(method))}</dt><dd>{text}</dd>")
    return f"<details><summary>Settings of every method</summary><dl>{''.join(lines)}</dl></details>"
