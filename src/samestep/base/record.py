"""Writes the files of a run atomically, and its records as JSON.

Each folder that a run writes to has a file ``.samestep-run`` with 32 random hexadecimal digits, the identity
of the run there. An unfinished file has this identity in its name, so that a run never removes a file that it
did not write::

    .samestep-draft-IDENTITY-RANDOM.result.json
"""

import errno
import json
import math
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from samestep.base.machine.description import machine
from samestep.base.regular_files import AS_IT_IS, descriptor, kind_of, read_bytes

IDENTITY_FILE = ".samestep-run"
_IDENTITY = re.compile(r"[0-9a-f]{32}\n")
_HIDDEN = re.compile(
    r"\.samestep-(?P<kind>draft|old|gone)-(?P<identity>[0-9a-f]{32})-[0-9a-f]{16}\.(?P<name>.+)", re.DOTALL
)


def identity_of(folder: Path) -> str | None:
    """Return the identity of the run that writes to `folder`; None where none is stored."""
    try:
        data = read_bytes(folder / IDENTITY_FILE, most=64, follow=False)
    except OSError:
        return None
    text = data.decode("ascii", errors="replace")
    return text.strip() if _IDENTITY.fullmatch(text) else None


def claim(folder: Path) -> str:
    """Return the identity of the run that writes to `folder`; make and store one if there is none.

    Raises:
        OSError: the identity cannot be stored, or something else has the name of its file.
    """
    if (identity := identity_of(folder)) is not None:
        return identity
    path = folder / IDENTITY_FILE
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
    with descriptor(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK) as handle:
        status = os.fstat(handle)
        if kind_of(status.st_mode) is not None or status.st_size:  # a writer that was killed left it empty
            raise OSError(errno.EEXIST, f"{IDENTITY_FILE} in it is not samestep's; move it away", str(path))
        identity = secrets.token_hex(16)
        os.write(handle, f"{identity}\n".encode())
        sync(handle)
    return identity


def sync(handle: int) -> None:
    """Flush a file or a folder to disk, where the file system supports it.

    Raises:
        OSError: the disk failed.
    """
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


def hidden_name(kind: str, name: str, identity: str) -> str:
    """Return a new name for a file or folder while it is written, replaced or deleted.

    The kind is ``draft``, ``old`` or ``gone``; `name` is the final name, or the one before, and `identity`
    that of the run.
    """
    return f".samestep-{kind}-{identity}-{secrets.token_hex(8)}.{name}"


def parse_hidden(name: str, identity: str) -> tuple[str, str] | None:
    """Return the kind and the final name in a hidden name of the run `identity`; None for any other name."""
    match = _HIDDEN.fullmatch(name)
    return (match["kind"], match["name"]) if match and match["identity"] == identity else None


def write_whole(path: Path, text: Iterable[str], *, identity: str | None = None) -> None:
    """Write `text` to `path` atomically: a reader finds the old file or the new one.

    Args:
        path: the file; a link is replaced, not followed.
        text: pieces of the text; see `printable` for names of files that are not UTF-8.
        identity: of the run that writes to the folder, which can remove the draft if this process is killed.

    Raises:
        OSError: the file cannot be written; no draft is left.
    """
    draft = path.with_name(hidden_name("draft", path.name, identity or secrets.token_hex(16)))
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | AS_IT_IS, 0o666)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.writelines(map(printable, text))
            stream.flush()
            os.fsync(stream.fileno())  # else a power failure can leave the new name with no content
        draft.replace(path)
    except BaseException:
        with suppress(OSError):  # an unfinished draft takes space where a disk is full
            draft.unlink()
        raise


def printable(text: str) -> str:
    r"""Return a text that any stream of UTF-8 takes: a byte of a name that is not UTF-8 is shown by its code.

    >>> printable("train-\udce9.py")
    'train-\\udce9.py'
    """
    return text.encode(errors="backslashreplace").decode()


def remove_file_drafts(folder: Path, identity: str) -> None:
    """Remove the drafts of files that a killed process of the run `identity` left in `folder`."""
    for path in list(folder.iterdir()):
        if parse_hidden(path.name, identity) and path.is_file() and not path.is_symlink():
            with suppress(OSError):
                path.unlink()


def probe(folder: Path) -> None:
    """Check that files can be created in `folder`.

    Raises:
        OSError: no file can be created.
    """
    path = folder / hidden_name("draft", "probe", secrets.token_hex(16))
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    path.unlink()


SCHEMA = 1
"""The version of the format, which every record holds as ``schema``."""

_NAME = "samestep"


def provenance() -> dict[str, Any]:
    """Return the origin of a record: time, command and machine."""
    return {
        "schema": SCHEMA,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": command(),
        "machine": asdict(machine()),
    }


def command() -> list[str]:
    """Return the command as the user has typed it; a forked worker has other arguments."""
    typed = sys.orig_argv
    for place, word in enumerate(typed[1:], 1):
        is_entry_point = Path(word).is_absolute() and Path(word).name == _NAME
        if is_entry_point or typed[place - 1 : place + 1] == ["-m", _NAME]:
            return [_NAME, *typed[place + 1 :]]
    return sys.argv


def write_json(path: Path, record: Mapping[str, Any], *, identity: str | None = None) -> None:
    """Write `record` to `path` as indented JSON, atomically; numbers that are not finite become null.

    The record has plain values; see `write_whole` for the identity.
    """
    text = json.dumps(map_values(record, _portable), indent=2, allow_nan=False)
    write_whole(path, [text, "\n"], identity=identity)


def json_line(record: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> str:
    """Return `record`, or several, as one line of JSON; a number that is not finite is null."""
    return json.dumps(map_values(record, _portable), allow_nan=False)


def map_values(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return JSON data with `change` applied to each value in its lists and objects."""
    if isinstance(value, Mapping):
        return {name: map_values(item, change) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [map_values(item, change) for item in value]
    return change(value)


def _portable(value: Any) -> Any:
    """Return null for NaN and infinity, which JSON does not have, and a text as readers accept it."""
    if isinstance(value, str):
        return printable(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


_GIT_S = 20.0  # the timeout of git, which checks all files of a repository


def repository_of(script: Path) -> dict[str, str]:
    """Return the folder of a script and, if git tracks the script, its commit.

    The commit ends in ``-dirty`` if tracked files were changed. Nothing in the repository is written or
    locked.
    """
    folder = script.absolute().parent
    source = {"folder": str(folder)}
    if _git(folder, "ls-files", "--error-unmatch", "--", script.name):
        commit = _git(folder, "rev-parse", "--verify", "--quiet", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no") if commit else None
        if changed is not None:
            source["commit"] = f"{commit}-dirty" if changed else f"{commit}"
    return source


def _git(folder: Path, *words: str) -> str | None:
    """Return the output of git; None if it fails, empty if there is no git."""
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(folder), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return None if done.returncode else done.stdout.decode(errors="replace").strip()
