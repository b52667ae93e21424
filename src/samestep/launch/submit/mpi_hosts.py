"""Reads the hosts of an MPI job from flags and files, and checks that they can run it."""

import shlex
import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from samestep.base.errors import UsageError
from samestep.base.regular_files import read_text
from samestep.base.units import whole
from samestep.launch.submit.shell import Ask, run_command

LOCAL = ("localhost", "127.0.0.1")
_MOST_SLOTS = 1 << 20
ANSWER_S = 10
"""Seconds to connect to a host."""
_NO_FOLDER, _NO_PROGRAM, _NO_SAMESTEP = 41, 42, 43


@dataclass(frozen=True, slots=True)
class Host:
    """A host, and its number of workers."""

    name: str  # the name or address that MPI and the other hosts use
    slots: int = 1  # number of workers

    def __str__(self) -> str:
        return f"{self.name}:{self.slots}"


def hosts_of(text: str) -> tuple[Host, ...]:
    """Parse ``a:2,b:2``; a host without a number has one worker.

    Raises:
        UsageError: the text does not have that form.
    """
    return _distinct([_host(item.strip(), f"--hosts {text!r}") for item in text.split(",")])


def hosts_in(path: Path) -> tuple[Host, ...]:
    """Read a file with a host on each line: ``a slots=2`` (Open MPI's), ``a:2`` (MPICH's) or ``a``.

    A host listed several times without a number has as many workers, because schedulers repeat its line.

    Raises:
        UsageError: the file cannot be read, lists no hosts, or has a line of another form.
    """
    try:
        lines = read_text(path).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"cannot read the hostfile {path}: {why}.") from None
    found: list[Host] = []
    bare: set[str] = set()
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if words:
            slots = [word.partition("=")[2] for word in words[1:] if word.startswith("slots=")]
            host = _host(":".join([words[0], *slots[:1]]), f"{path}:{number}: {line.strip()!r}")
            if slots or ":" in words[0]:
                found.append(host)
            elif host.name in bare:
                found = [Host(one.name, one.slots + (one.name == host.name)) for one in found]
            else:
                bare.add(host.name)
                found.append(host)
    if not found:
        raise UsageError(f"the hostfile {path} lists no hosts; give each one a line: NAME slots=WORKERS.")
    return _distinct(found)


def _host(text: str, where: str) -> Host:
    name, _, slots = text.partition(":")
    if not name or name.startswith("-") or any(character.isspace() for character in name):
        raise UsageError(f"{where}: {text!r} is not the name of a host, such as those in a:2,b:2.")
    if slots and not 0 < (whole(slots) or 0) <= _MOST_SLOTS:
        raise UsageError(f"{where}: {slots!r} is not a number of workers, such as those in a:2,b:2.")
    return Host(name, int(slots or 1))


def _distinct(found: list[Host]) -> tuple[Host, ...]:
    names = [one.name for one in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"host {twice} is listed twice; list it once, with all its workers: {twice}:2.")
    return tuple(found)


def is_here(host: Host) -> bool:
    """Return whether the name of a host is that of this one."""
    here = socket.gethostname()
    return host.name in (*LOCAL, here, here.partition(".")[0])


def unusable(
    hosts: Iterable[Host], *, ssh: str, folder: Path, program: str | None, python: str, ask: Ask = run_command
) -> list[str]:
    """Return why hosts other than this one cannot run the job, one sentence for each such host.

    All hosts are checked at once, over the connection that mpirun uses: the folder, the program and samestep
    must be there. `program` is a file that each worker reads, if there is one; `python` is empty if only the
    job itself can find the interpreter.
    """
    others = [one for one in hosts if not is_here(one)]
    if not others:
        return []
    question = _question(folder, program, python)
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={ANSWER_S}"]
    words = shlex.split(ssh)
    begin = [*words, *(options if Path(words[0]).name == "ssh" else [])]
    with ThreadPoolExecutor(max_workers=min(32, len(others))) as pool:
        answers = list(pool.map(ask, [[*begin, one.name, question] for one in others]))
    problems = {
        _NO_FOLDER: f"has no folder {folder}; use one that all hosts share",
        _NO_PROGRAM: f"has no file {program} in that folder",
        _NO_SAMESTEP: f"cannot import samestep with {python}",
    }
    return [
        f"{one.name} {problems.get(answer.code) or f'cannot be reached by `{ssh} {one.name}`'}"
        + (f" ({answer.err.strip().splitlines()[-1].strip()})" if answer.err.strip() else "")
        for one, answer in zip(others, answers, strict=True)
        if answer.code
    ]


def _question(folder: Path, program: str | None, python: str) -> str:
    """Return a line of shell whose exit code names what is missing."""
    steps = [f"cd {shlex.quote(str(folder))} 2>/dev/null || exit {_NO_FOLDER}"]
    if program is not None:
        steps.append(f"test -r {shlex.quote(program)} || exit {_NO_PROGRAM}")
    if python:
        steps.append(f"{shlex.quote(python)} -c 'import samestep' || exit {_NO_SAMESTEP}")
    return "; ".join(steps)
