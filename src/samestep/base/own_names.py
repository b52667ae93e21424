"""Names under which a run keeps what it is writing, so that it never takes another's file for its own.

Each folder that a run writes to has a file ``.samestep-run`` with 32 random hexadecimal digits, the identity
of the run there. What is being written has it in its name::

    .samestep-draft-IDENTITY-RANDOM.result.json
"""

import errno
import os
import re
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from samestep.base.regular_files import kind_of, read_bytes

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
    """Return the identity of the run that writes to `folder`, which is drawn and stored where there is none.

    Raises:
        OSError: it cannot be stored, or a file of another kind has its name.
    """
    if (identity := identity_of(folder)) is not None:
        return identity
    path = folder / IDENTITY_FILE
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
    handle = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(handle)
        if kind_of(status.st_mode) is not None or status.st_size:  # a writer that was killed left it empty
            raise OSError(errno.EEXIST, f"{IDENTITY_FILE} in it is not samestep's; move it away", str(path))
        identity = secrets.token_hex(16)
        os.write(handle, f"{identity}\n".encode())
        sync(handle)
    finally:
        os.close(handle)
    return identity


def sync(handle: int) -> None:
    """Wait until a file or a folder is on disk, where the file system can be asked for this.

    Raises:
        OSError: the disk failed.
    """
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


def hidden_name(kind: str, name: str, identity: str) -> str:
    """Return a new name for something that is being written, replaced or deleted.

    Args:
        kind: ``draft``, ``old`` or ``gone``.
        name: what it is to be called, or was called before.
        identity: of the run.
    """
    return f".samestep-{kind}-{identity}-{secrets.token_hex(8)}.{name}"


def parse_hidden(name: str, identity: str) -> tuple[str, str] | None:
    """Return the kind and the later name in a hidden name of the run `identity`; None for any other name."""
    match = _HIDDEN.fullmatch(name)
    return (match["kind"], match["name"]) if match and match["identity"] == identity else None


def write_whole(path: Path, text: Iterable[str], *, identity: str | None = None) -> None:
    """Write `text` to `path`: a reader finds the old file or the new one, never half of one.

    Args:
        path: a link of that name is replaced, not followed.
        text: what to write, piece by piece.
        identity: of the run that writes to the folder, which can remove the draft if this process is killed.

    Raises:
        OSError: it cannot be written; no draft is left then.
    """
    draft = path.with_name(hidden_name("draft", path.name, identity or secrets.token_hex(16)))
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.writelines(text)
        draft.replace(path)
    except BaseException:
        with suppress(OSError):  # half of one takes room where a disk is full
            draft.unlink()
        raise


def remove_file_drafts(folder: Path, identity: str) -> None:
    """Remove the drafts of files that a killed process of the run `identity` left in `folder`."""
    for path in list(folder.iterdir()):
        if parse_hidden(path.name, identity) and path.is_file() and not path.is_symlink():
            with suppress(OSError):
                path.unlink()


def probe(folder: Path) -> None:
    """Show that files can be made in `folder`.

    Raises:
        OSError: they cannot.
    """
    path = folder / hidden_name("draft", "probe", secrets.token_hex(16))
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    path.unlink()
