"""Writes ``report.html``, the page of one run, and the page of several runs side by side."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from samestep import __version__
from samestep.base.units import bytes_text
from samestep.studies.report.figures import curves, times
from samestep.studies.report.page import bullets, page, section, table, title_of
from samestep.studies.report.read_run import PHASES, Run, names, read_run
from samestep.studies.report.run_summary import headline, hints, shares
from samestep.studies.report.write import write_text

NAME = "report.html"


def write_report(run_folder: Path) -> Path:
    """Write the page of a run into its folder, and return its path.

    Raises:
        UsageError: it is not a run folder, a file in it is damaged, or the page cannot be written.
    """
    run = read_run(run_folder)
    return write_text(run_folder / NAME, render(run))


def render(run: Run) -> str:
    """Return the page of a run as HTML."""
    return page(f"samestep: {run.name}", _body(run), foot=f"Made by samestep {__version__} from {run.path}.")


def _body(run: Run) -> Iterator[str]:
    yield f"<header>{title_of(run.name)}"
    yield f'<p class="headline">{escape(headline(run))}</p></header>'
    yield bullets([hint.message for hint in hints(run)], "hints")
    yield section("Training", _grid(chart.render() for chart in curves([run])))
    yield section("Speed", _grid(chart.render() for chart in times(run)), _phases(run))
    if run.sessions:
        yield section("Starts and machine", _sessions(run), _machine(run.sessions[-1]))
    yield section("Settings", table(sorted((name, _text(value)) for name, value in run.config.items())))
    if run.checkpoints:
        rows = [
            (one.name, "cannot be read" if one.num_bytes is None else bytes_text(one.num_bytes))
            for one in run.checkpoints
        ]
        yield section("Checkpoints", table(rows, head=("name", "size")))


def _grid(figures: Iterator[str]) -> str:
    return f'<div class="grid2">{"".join(figures)}</div>'


def _phases(run: Run) -> str:
    seconds = shares(run)
    whole = sum(seconds.values())
    if not whole:
        return ""
    rows = [
        (name.replace("_", " "), f"{seconds[name] * 1e3:.3g} ms", f"{seconds[name] / whole:.0%}")
        for name in PHASES
    ]
    return table([*rows, ("a step", f"{whole * 1e3:.3g} ms", "100%")], head=("median of", "time", "share"))


def _sessions(run: Run) -> str:
    rows = [
        (
            "new" if session.get("checkpoint") is None else f"resumed from {session['checkpoint']}",
            int(session["step"]),
            int(session["world_size"]),
            *(_text(session.get(name, "")) for name in ("nodes", "launcher", "device", "threads")),
            _text(_provenance(session).get("created", "")),
        )
        for session in run.sessions
    ]
    head = ("start", "after step", "workers", "nodes", "launcher", "device", "threads each", "time (UTC)")
    return table(rows, head=head)


def _machine(session: Mapping[str, Any]) -> str:
    provenance = _provenance(session)
    machine = provenance.get("machine")
    facts = dict(machine) if isinstance(machine, dict) else {}
    facts.pop("cpu", None)
    if isinstance(facts.get("memory_bytes"), int):
        facts["memory"] = bytes_text(facts.pop("memory_bytes"))
    command = provenance.get("command")
    rows = [("command", shlex.join(map(str, command)) if isinstance(command, list) else "")]
    return table([*rows, *((name, _text(value)) for name, value in facts.items())])


def _provenance(session: Mapping[str, Any]) -> dict[str, Any]:
    found = session.get("provenance")
    return found if isinstance(found, dict) else {}


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def render_side_by_side(runs: Sequence[Run]) -> str:
    """Return the page of several runs as HTML."""
    title = f"{len(runs)} runs side by side"
    return page(f"samestep: {title}", _comparison(title, runs), foot=f"Made by samestep {__version__}.")


def differing(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    """Return the settings in which `runs` differ, with the value of each run."""
    names = sorted({name for run in runs for name in run.config})
    rows = [(name, *(str(run.config.get(name, "")) for run in runs)) for name in names]
    return [row for row in rows if len(set(row[1:])) > 1]


def _comparison(title: str, runs: Sequence[Run]) -> Iterator[str]:
    yield f"<header><h1>{escape(title)}</h1></header>"
    yield section("Results", table(list(zip(names(runs), map(headline, runs), strict=True))), _results(runs))
    yield section("Training", _grid(chart.render() for chart in curves(runs)))
    rows = differing(runs)
    same = "" if rows else "<p>None.</p>"
    yield section("Settings that differ", table(rows, head=("setting", *names(runs))) if rows else same)


def _results(runs: Sequence[Run]) -> str:
    rows: list[tuple[object, ...]] = []
    for name, run in zip(names(runs), runs, strict=True):
        step_s = sum(shares(run).values())
        result = run.result
        rows.append(
            (
                name,
                run.workers or "",
                f"{result['accuracy']:.2%}" if result else "not finished",
                result.get("loss", ""),
                run.num_steps,
                result.get("seconds", ""),
                f"{result['samples_per_second']:,.0f}" if result else "",
                f"{step_s * 1e3:.3g} ms",
            )
        )
    head = ("run", "workers", "accuracy", "test loss", "steps", "seconds", "samples/s", "median step")
    return table(rows, head=head)
