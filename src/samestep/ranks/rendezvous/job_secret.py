"""Provides the secret that only the processes of a job have, by which they authenticate each other.

====================================== ==================================================================
launcher of this process               the secret
====================================== ==================================================================
``samestep run`` or ``samestep.spawn`` 32 bytes in a sealed memory file of the launcher; its path,
                                       under the launcher's /proc, is in SAMESTEP_SECRET_FILE. They are
                                       random on one node, and derived from the job's secret on several
another one, with --secret-file        that file, the same on every node
another one                            a file in the user's home, created at first use
====================================== ==================================================================

Only the same user can open /proc/PID/fd. Nothing remains when the launcher ends.
"""

import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir

from samestep.base.env import SECRET_FILE, Environment
from samestep.base.errors import UsageError
from samestep.base.regular_files import open_regular
from samestep.ranks.rendezvous.authentication import derived

_IN_POD = "KUBERNETES_SERVICE_HOST"  # set by Kubernetes in every container
_BYTES = 32  # of a random secret
_FEWEST, _MOST = 16, 4096  # bytes of a file with a secret: 128 bits cannot be tried out; a page is no key
_ADVICE = (
    "Make one with `(umask 077; head -c 32 /dev/urandom > FILE)`, and give --secret-file FILE on every node."
)


@dataclass(frozen=True, slots=True)
class Shared:
    """Secret that child processes find by a variable of their environment."""

    variables: dict[str, str]  # variables for their environment
    file: int  # this process's descriptor, which they do not need


def job_key(environment: Environment, purpose: str) -> bytes:
    """Return the key of this job for one purpose; the same on every rank.

    Raises:
        UsageError: the file with the secret cannot be used.
    """
    if named := environment.get(SECRET_FILE, ""):
        return derived(_read(Path(named), in_pod=_IN_POD in environment), purpose)
    return derived(_of_user(environment), purpose)


@contextmanager
def shared_secret(secret: bytes | None = None) -> Iterator["Shared"]:
    """Yield the variables by which child processes find a secret, which exists until the block ends.

    The secret is random if none is given.
    """
    descriptor = os.memfd_create("samestep-secret", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.fchmod(descriptor, 0o600)
        os.write(descriptor, secret or secrets.token_bytes(_BYTES))
        fcntl.fcntl(
            descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK
        )
        yield Shared({SECRET_FILE: f"/proc/{os.getpid()}/fd/{descriptor}"}, descriptor)
    finally:
        os.close(descriptor)


def _read(path: Path, *, in_pod: bool = False) -> bytes:
    """Return the content of a file that only this user can read.

    In a Kubernetes pod, all of whose processes belong to the job, a group may read the file: that is how the
    system's user gives a mounted Secret to a user without its rights.
    """
    try:
        with open_regular(path) as file:
            status, content = os.fstat(file.fileno()), file.read(_MOST + 1)
    except OSError as error:
        raise UsageError(f"the secret in {path} cannot be read: {error.strerror}. {_ADVICE}") from None
    forbidden = 0o037 if in_pod and status.st_uid == 0 else 0o077
    if status.st_uid not in (os.geteuid(), 0) or stat.S_IMODE(status.st_mode) & forbidden:
        raise UsageError(
            f"{path} is no secret: other users can read or change it (mode "
            f"{stat.S_IMODE(status.st_mode):03o}, owner {status.st_uid}). Use `chmod 600`, as its owner."
        )
    if not _FEWEST <= len(content) <= _MOST:
        raise UsageError(f"{path} holds {len(content)} bytes; a secret has {_FEWEST} to {_MOST}. {_ADVICE}")
    return content


def _of_user(environment: Environment) -> bytes:
    """Return the secret of this user, which is created at first use.

    If the home directory is not writable, a folder in the temporary directory serves for one host.
    """
    home = environment.get("HOME", "")
    config = environment.get("XDG_CONFIG_HOME") or (home and str(Path(home, ".config")))
    with suppress(OSError):
        if config:
            return _made(Path(config, "samestep"))
    folder = Path(gettempdir(), f"samestep-{os.geteuid()}")
    try:
        return _made(folder)
    except OSError as error:
        raise UsageError(
            f"this user's secret can be kept neither in {config or 'a home directory'} nor in {folder} "
            f"({error.strerror}). {_ADVICE}"
        ) from None


def _made(folder: Path) -> bytes:
    """Return the secret in a folder of this user's; if several processes create it, the first one's is used.

    Raises:
        OSError: the folder cannot be created.
        UsageError: another user can change it.
    """
    file = folder / "secret"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _refuse_shared(folder)
    if file.exists():
        return _read(file)
    draft = folder / f".secret-{os.getpid()}-{secrets.token_hex(4)}"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as new:
            new.write(secrets.token_bytes(_BYTES))
            new.flush()
            os.fsync(descriptor)
        with suppress(FileExistsError):  # another process was first
            os.link(draft, file)
    finally:
        draft.unlink()
    return _read(file)


def _refuse_shared(folder: Path) -> None:
    """Refuse a folder that other users can put files into."""
    status = folder.stat()
    if status.st_uid not in (os.geteuid(), 0) or stat.S_IMODE(status.st_mode) & 0o022:
        raise UsageError(
            f"{folder} is no place for a secret: other users can change it (mode "
            f"{stat.S_IMODE(status.st_mode):03o}, owner {status.st_uid}). {_ADVICE}"
        )
