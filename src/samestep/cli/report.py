"""``samestep report``: runs, or a scaling study, as a page."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from samestep.base.errors import UsageError
from samestep.base.record import json_line
from samestep.cli.worth import efficiency
from samestep.report import compare, run_page
from samestep.report.read import names, read_run
from samestep.report.run_page import NAME
from samestep.report.scaling.page import write_study_page
from samestep.report.scaling.sources import is_about_scaling, is_study, study_of
from samestep.report.scaling.text import study_text, terminal_width
from samestep.report.words import headline, hints
from samestep.report.write import write_text
from samestep.scaling.files import as_json as study_as_json
from samestep.scaling.logs import seen_from_here


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Run folders; or a study.json, or a CSV of workers and seconds, perhaps weak.",
        ),
    ],
    *,
    scaling: Annotated[
        bool, typer.Option("--scaling", help="Runs on several numbers of workers: speedup and efficiency.")
    ] = False,
    worth: Annotated[
        float | None,
        typer.Option(
            metavar="EFFICIENCY",
            parser=efficiency,
            help="For scaling: from which on workers pay, such as 0.7 or 70%.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help=f"The page; else {NAME} beside what is given, or here for several."
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print the page's path and the headlines, or the study, as JSON."),
    ] = False,
) -> None:
    """Make a page of a run, of several side by side, or of a scaling study.

    The page is one file that needs no network: curves, times, settings, what it ran on.
    """
    if scaling or is_about_scaling(paths):
        _report_study(paths, worth=worth, out=out, as_json=as_json)
        return
    if worth is not None:
        raise UsageError("--worth is about scaling: add --scaling to compare numbers of workers.")
    runs = [read_run(path) for path in paths]
    if len(runs) == 1:
        page = write_text(out or paths[0] / NAME, run_page.render(runs[0]))
    else:
        page = write_text(out or Path(NAME), compare.render(runs))
    headlines = dict(zip(names(runs), map(headline, runs), strict=True))
    if as_json:
        found = {
            name: [asdict(hint) for hint in hints(run)] for name, run in zip(headlines, runs, strict=True)
        }
        print(json_line({"page": str(page), "runs": headlines, "hints": found}).rstrip())
        return
    for name, words in headlines.items():
        print(words if len(headlines) == 1 else f"{name}: {words}")
    print(f"page: {page}")


def _report_study(paths: list[Path], *, worth: float | None, out: Path | None, as_json: bool) -> None:
    study = study_of(paths, bar=worth)
    page = write_study_page(study, out or _beside(paths))
    if as_json:
        print(json_line({"page": str(page), "study": study_as_json(study)}).rstrip())
        return
    told = seen_from_here(study, _folder(paths[0])) if is_study(paths[0]) else study
    print(study_text(told, terminal_width()))
    print(f"\npage: {page}")


def _beside(paths: list[Path]) -> Path:
    """Return where the page of a study goes: beside the study, after the table's name, or here."""
    if len(paths) > 1:
        return Path(NAME)
    if is_study(paths[0]):
        return _folder(paths[0]) / NAME
    return paths[0].with_suffix(".html")


def _folder(study: Path) -> Path:
    return study if study.is_dir() else study.parent
