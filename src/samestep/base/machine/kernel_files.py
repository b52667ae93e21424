"""Reads small files of the kernel; a file that is missing or cannot be read counts as empty."""

from pathlib import Path


def text_of(path: Path) -> str:
    """Return the text of a file without leading and trailing white space."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:  # some files of sysfs cannot be read, such as the speed of a link that is down
        return ""


def number_of(path: Path) -> int | None:
    """Return the integer in a file; None where there is none."""
    text = text_of(path)
    try:
        return int(text, 0)
    except ValueError:
        return None


def name_space(kind: str) -> str:
    """Return the name of a namespace of this process, such as ``pid`` or ``ipc``; empty where unknown."""
    try:
        return str(Path(f"/proc/self/ns/{kind}").readlink())
    except OSError:  # not Linux
        return ""


def folders_in(path: Path) -> list[Path]:
    """Return the folders in a folder, sorted by name; links to folders are included."""
    try:
        return sorted(entry for entry in path.iterdir() if entry.is_dir())
    except OSError:
        return []
