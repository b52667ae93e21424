"""Writes a page atomically."""

from pathlib import Path

from samestep.base.errors import UsageError
from samestep.base.unfinished_names import write_whole


def write_text(path: Path, text: str) -> Path:
    """Write `text` to `path` atomically, and return the path.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        if path.is_dir():
            raise UsageError(
                f"cannot write {path}: it is a folder. Name a file, such as --out {path / 'report.html'}."
            )
        write_whole(path, [text])
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}. Choose another --out.") from None
    return path
