"""Writes a page atomically, and charts as files of their own."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from samestep.base.errors import UsageError
from samestep.base.folders import refuse_unwritable
from samestep.base.owned_folders import temporary_directory
from samestep.base.record import write_whole
from samestep.base.units import counted
from samestep.report.drawing import Chart

_PPI = 216  # pixels per inch of a PNG: three for each unit of a chart, which is a point in a PDF

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HEADLESS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--no-pdf-header-footer"),
)
"""Flags for a page of our own, without a display; a sandbox does not start as root or in containers."""


def write_text(path: Path, text: str) -> Path:
    """Write `text` to `path` atomically, and return the path.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        if path.is_dir():
            raise UsageError(
                f"cannot write {path}: it is a folder. Name a file, such as --page {path / 'report.html'}."
            )
        write_whole(path, [text])
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}. Choose another file.") from None
    return path


def refuse_without_browser(pdf: Path | None) -> None:
    """Refuse ``--pdf`` without Chromium, before time is spent on the page.

    Raises:
        UsageError: there is no browser, or the file cannot be written.
    """
    if pdf is None:
        return
    if browser() is None:
        raise UsageError(
            f"--pdf {pdf} needs Chromium, and none of {', '.join(_BROWSERS)} is on the PATH. Install one, or "
            "print the page in a browser."
        )
    if pdf.is_dir():
        raise UsageError(f"--pdf {pdf} is a folder; give a file, such as {pdf / 'report.pdf'}.")
    refuse_unwritable("--pdf", pdf.parent)


def write_pdf(page: Path, pdf: Path) -> str:
    """Print a page to a PDF by Chromium, and return a line about the file.

    Raises:
        UsageError: the browser fails.
    """
    pdf.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=temporary_directory()) as profile:
        words = [
            str(browser()),
            *HEADLESS,
            f"--user-data-dir={profile}",
            f"--print-to-pdf={pdf.absolute()}",
        ]
        try:
            ended = subprocess.run(
                [*words, page.absolute().as_uri()], capture_output=True, text=True, check=False, timeout=120
            )
        except subprocess.TimeoutExpired:
            raise UsageError(
                f"Chromium did not print {page} within 120 s; open the page and print it."
            ) from None
    if ended.returncode or not pdf.is_file():
        reason = " ".join(ended.stderr.split()[-30:])
        raise UsageError(f"Chromium cannot print {page} to {pdf}: {reason or 'it wrote no file'}.")
    return f"pdf: {pdf}"


def browser() -> str | None:
    """Return the path of Chromium or Chrome; None if neither is installed."""
    return next((found for name in _BROWSERS if (found := shutil.which(name))), None)


def write_figures(charts: Iterable[Chart], folder: Path) -> str:
    """Write each chart that has data as SVG, PDF and PNG, and return a line about the files.

    Without the extra ``plots``, only SVG is written, and the line has the command that installs it.

    Raises:
        UsageError: a file cannot be written.
    """
    documents = {chart.stem(): document for chart in charts if (document := chart.svg())}
    library = _converter()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, document in documents.items():
            (folder / f"{name}.svg").write_text(document, encoding="utf-8")
            if library:
                (folder / f"{name}.pdf").write_bytes(library.svg_to_pdf(document))
                (folder / f"{name}.png").write_bytes(library.svg_to_png(document, ppi=_PPI))
    except OSError as error:
        raise UsageError(
            f"cannot write {error.filename or folder}: {error.strerror}. Choose another --figures."
        ) from None
    kinds = "as SVG, PDF and PNG" if library else "as SVG; for PDF and PNG: pip install 'samestep[plots]'"
    return f"figures: {folder}, {counted(len(documents), 'chart')} {kinds}"


def _converter() -> Any:
    """Return the library that converts SVG; None if it is not installed."""
    try:
        import vl_convert
    except ImportError:
        return None
    return vl_convert
