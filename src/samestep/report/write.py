"""Writing a page: whole or not at all."""

import os
from pathlib import Path

from samestep.base.errors import UsageError


def write_text(path: Path, text: str) -> Path:
    """Write `text` to `path`; a reader finds the old file or the new one.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        if path.is_dir():
            raise UsageError(
                f"cannot write {path}: it is a folder. Name a file, such as --out {path / 'report.html'}."
            )
        draft = path.with_name(f".{path.name}.draft-{os.getpid()}")
        try:
            draft.write_text(text, encoding="utf-8")
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}. Choose another --out.") from None
    return path
