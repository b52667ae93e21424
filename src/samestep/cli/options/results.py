"""Declares the options of trainings and of results."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from samestep.base.console import inform
from samestep.base.errors import UsageError
from samestep.base.folders import refuse_unwritable
from samestep.cli.options.declare import (
    DATA_PANEL,
    RESULTS_PANEL,
    TRAINING_PANEL,
    completing,
    option,
    switch,
)
from samestep.report.drawing import Chart
from samestep.report.page import refuse_without_browser, write_figures, write_pdf

AsJson = Annotated[bool, switch("Print JSON instead of text.", RESULTS_PANEL, "--json")]


def data_sets(incomplete: str) -> list[str]:
    """Return the names of data sets that begin with a text."""
    from samestep.training.data.sets.registry import DATA_SETS  # imports torch

    return completing(DATA_SETS)(incomplete)


Data = Annotated[
    str | None,
    option(
        "NAME",
        "Another data set; samestep data list prints the names.",
        DATA_PANEL,
        autocompletion=data_sets,
    ),
]
DataDir = Annotated[Path | None, option("DIR", "Folder of the data set.", DATA_PANEL)]
MODEL = option("NAME", "convnet, resnet9, resnet18 ... resnet152.", TRAINING_PANEL)
BATCH_PER_WORKER = option(
    "B",
    "Samples per worker in each step. The global batch is N * B, so the training depends on N.",
    TRAINING_PANEL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The options of the forms in which results are saved and printed."""

    figures: Annotated[
        Path | None,
        option("DIR", "Save each chart there as SVG, PDF and PNG, for a paper or slides.", RESULTS_PANEL),
    ] = None
    as_json: AsJson = False

    def check(self) -> None:
        """Refuse a folder for figures that cannot be written to."""
        refuse_unwritable("--figures", self.figures)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOutput(Output):
    """The options of results that have a page."""

    pdf: Annotated[
        Path | None, option("FILE", "Also print the page to a PDF, by Chromium.", RESULTS_PANEL)
    ] = None

    def check(self) -> None:
        """Refuse files that cannot be written."""
        super(PageOutput, self).check()
        refuse_without_browser(self.pdf)

    def save(self, page: Path, charts: Callable[[], Iterable[Chart]]) -> None:
        """Save the charts, and print the page to a PDF, if these were asked for."""
        if self.figures is not None:
            inform(write_figures(charts(), self.figures))
        if self.pdf is not None:
            inform(write_pdf(page, self.pdf))


def _efficiency(text: str) -> float:
    """Parse an efficiency, as a fraction or in percent.

    >>> _efficiency("0.7"), _efficiency("70%")
    (0.7, 0.7)

    Raises:
        UsageError: the text is not an efficiency above 0 and at most 1.
    """
    percent = text.strip().endswith("%")
    try:
        number = float(text.strip().removesuffix("%")) / (100 if percent else 1)
    except ValueError:
        number = 0.0
    if not 0 < number <= 1:
        raise UsageError(f"--worth {text} is not an efficiency; give one such as 0.7 or 70%, at most 1.")
    return number


Worth = Annotated[
    float | None,
    option(
        "EFFICIENCY",
        "Report which numbers of workers reach this efficiency, such as 0.7 or 70%.",
        RESULTS_PANEL,
        parser=_efficiency,
    ),
]
