"""Reading what the kernel says in small files: what is not there, or not for us, is empty."""

from pathlib import Path


def text_of(path: Path) -> str:
    """Return what stands in a file, without the white space around it."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except (
        OSError
    ):  # some files of sysfs are there and cannot be read, such as the speed of a link that is down
        return ""


def number_of(path: Path) -> int | None:
    """Return the whole number in a file; None where there is none."""
    text = text_of(path)
    try:
        return int(text, 0)
    except ValueError:
        return None


def folders_in(path: Path) -> list[Path]:
    """Return the folders in a folder, by name; links to folders are some."""
    try:
        return sorted(entry for entry in path.iterdir() if entry.is_dir())
    except OSError:
        return []
