"""Compares several runs side by side on one page."""

from collections.abc import Iterator, Sequence
from html import escape

from samestep import __version__
from samestep.studies.report.figures import curves
from samestep.studies.report.page import page, section, table
from samestep.studies.report.read_run import Run, names
from samestep.studies.report.run_summary import headline, shares


def render(runs: Sequence[Run]) -> str:
    """Return the page of several runs as HTML."""
    title = f"{len(runs)} runs side by side"
    return page(f"samestep: {title}", _body(title, runs), foot=f"Made by samestep {__version__}.")


def differing(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    """Return the settings in which `runs` differ, with the value of each run."""
    names = sorted({name for run in runs for name in run.config})
    rows = [(name, *(str(run.config.get(name, "")) for run in runs)) for name in names]
    return [row for row in rows if len(set(row[1:])) > 1]


def _body(title: str, runs: Sequence[Run]) -> Iterator[str]:
    yield f"<header><h1>{escape(title)}</h1></header>"
    yield section("Results", table(list(zip(names(runs), map(headline, runs), strict=True))), _results(runs))
    yield section("Training", f'<div class="grid2">{"".join(chart.render() for chart in curves(runs))}</div>')
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
