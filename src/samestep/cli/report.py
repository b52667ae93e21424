"""``samestep report``: runs as a page."""

from pathlib import Path
from typing import Annotated

import typer

from samestep.base.record import json_line
from samestep.report import compare, run_page
from samestep.report.read import names, read_run
from samestep.report.run_page import NAME
from samestep.report.words import headline
from samestep.report.write import write_text


def report(
    paths: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")],
    *,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"The page; else {NAME} in the run folder, or here for several."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the page's path and the headlines as JSON.")
    ] = False,
) -> None:
    """Make a page of a run, or of several side by side.

    The page is one file that needs no network: curves, times, settings, what it ran on.
    """
    runs = [read_run(path) for path in paths]
    if len(runs) == 1:
        page = write_text(out or paths[0] / NAME, run_page.render(runs[0]))
    else:
        page = write_text(out or Path(NAME), compare.render(runs))
    said = dict(zip(names(runs), map(headline, runs), strict=True))
    if as_json:
        print(json_line({"page": str(page), "runs": said}).rstrip())
        return
    for name, words in said.items():
        print(words if len(said) == 1 else f"{name}: {words}")
    print(f"page: {page}")
