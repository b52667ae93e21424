"""Implements ``samestep report``, which writes a page about runs or a scaling study."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from samestep.base.errors import UsageError
from samestep.base.record import json_line
from samestep.cli.options import launch, results
from samestep.cli.options.declare import RESULTS_PANEL, grouped, option, switch
from samestep.report import run_page
from samestep.report.page import write_text
from samestep.report.read_run import names, read_run
from samestep.report.run_page import NAME, charts, headline, hints
from samestep.scaling.analysis.study import seen_from_here
from samestep.scaling.report.page import charts as study_charts
from samestep.scaling.report.page import write_study_page
from samestep.scaling.report.sources import is_about_scaling, is_study, study_of
from samestep.scaling.report.tables import study_text, terminal_width

_OF_TABLES = (".csv", ".tsv", ".txt")


@grouped
def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="Run folders, a study.json, or a CSV file with columns workers, seconds, and perhaps weak.",
        ),
    ],
    *,
    scaling: Annotated[
        bool, switch("Compare numbers of workers: speedup and efficiency.", "", "--scaling")
    ] = False,
    worth: results.Worth = None,
    page: Annotated[
        Path | None,
        option(
            "FILE",
            f"The page. Default: {NAME} beside the run, or in this folder for several runs.",
            RESULTS_PANEL,
        ),
    ] = None,
    output: results.PageOutput,
    quiet: launch.Quiet = False,  # noqa: ARG001 - it has a callback
) -> None:
    """Write a page about a run, a comparison of runs, or a scaling study.

    The page is one HTML file that needs no network. It shows curves, times, settings and the machine. --json
    prints its path with a summary of each run, or with the study.
    """
    output.check()
    if scaling or is_about_scaling(paths):
        _report_study(paths, output, worth=worth, page=page)
        return
    if worth is not None:
        raise UsageError("--worth needs a comparison of numbers of workers; add --scaling.")
    runs = [read_run(path) for path in paths]
    if len(runs) == 1:
        path = write_text(page or paths[0] / NAME, run_page.render(runs[0]))
    else:
        path = write_text(page or Path(NAME), run_page.render_side_by_side(runs))
    output.save(path, partial(charts, runs))
    headlines = dict(zip(names(runs), map(headline, runs), strict=True))
    if output.as_json:
        hints_of = {
            name: [asdict(hint) for hint in hints(run)] for name, run in zip(headlines, runs, strict=True)
        }
        print(json_line({"page": str(path), "runs": headlines, "hints": hints_of}))
        return
    for name, words in headlines.items():
        print(words if len(headlines) == 1 else f"{name}: {words}")
    print(f"page: {path}")


def _report_study(
    paths: list[Path], output: results.PageOutput, *, worth: float | None, page: Path | None
) -> None:
    study = study_of(paths, bar=worth)
    path = page or _beside(paths)
    if any(path.exists() and path.samefile(source) for source in paths):
        raise UsageError(f"--page {path} is what the page is made from: give another file.")
    path = write_study_page(study, path)
    output.save(path, partial(study_charts, study))
    if output.as_json:
        print(json_line({"page": str(path), "study": asdict(study)}))
        return
    if is_study(paths[0]):
        study = seen_from_here(study, _folder(paths[0]))
    print(study_text(study, terminal_width()))
    print(f"\npage: {path}")


def _beside(paths: list[Path]) -> Path:
    """Return the path of a study's page: beside the study, with the name of the table, or in this folder."""
    if len(paths) > 1:
        return Path(NAME)
    if is_study(paths[0]):
        return _folder(paths[0]) / NAME
    table = paths[0]
    return table.with_suffix(".html") if table.suffix in _OF_TABLES else table.with_name(f"{table.name}.html")


def _folder(study: Path) -> Path:
    return study if study.is_dir() else study.parent
