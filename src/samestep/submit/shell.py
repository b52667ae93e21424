"""Quotes text for shells and for sbatch, and runs commands of a site."""

import re
import shlex
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from samestep.base.errors import UsageError

WIDTH = 100
"""Columns of a script, which is read in editors."""
TIMED_OUT = 124
"""Exit code of a command that did not end in time, as that of ``timeout``."""
_NOT_FOUND = 127  # exit code of a command that does not exist or cannot be executed, as that of a shell
_WIDEST = 44  # columns of flags beside which their purposes are aligned
_PLAIN = re.compile(r"[\w@%+=:,./\[\]-]+", re.ASCII)


def quoted(words: Iterable[str]) -> list[str]:
    r"""Return `words` quoted for bash, each on one line, so that it also fits into a comment.

    >>> print(*quoted(["a b", "two\nlines"]))
    'a b' $'two\nlines'
    """
    escapes = str.maketrans({"\\": "\\\\", "'": "\\'", "\n": "\\n"})
    return [f"$'{word.translate(escapes)}'" if "\n" in word else shlex.quote(word) for word in words]


def directive(flag: str, value: object = "") -> str:
    r"""Return an ``#SBATCH`` line; sbatch reads quotes and backslashes, but is not a shell.

    >>> directive("--job-name", 'an "odd" name')
    '#SBATCH --job-name="an \\"odd\\" name"'
    """
    text = str(value)
    if re.search(r"[\n\r\0]", flag + text):
        raise UsageError(f"{flag} {text!r} contains a line break; give one line.")
    if not text:
        return f"#SBATCH {flag}"
    if not _PLAIN.fullmatch(text):
        text = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"#SBATCH {flag}={text}"


def command(*parts: Sequence[str], width: int = WIDTH) -> str:
    r"""Return quoted words as one command; each part starts on a new line.

    >>> print(command(["srun", "--exclusive"], ["python", "-m", "samestep"], width=18))
    srun --exclusive \
        python -m \
        samestep
    """
    lines: list[str] = []
    for part in parts:
        line = "    " if lines else ""
        for word in part:
            if line.strip() and len(line) + len(word) > width - 2:
                lines.append(line.rstrip())
                line = "    "
            line += f"{word} "
        lines.append(line.rstrip())
    return " \\\n".join(lines)


def explained(flags: Iterable[tuple[str, str]]) -> list[str]:
    """Return comment lines with the purpose of each flag, aligned."""
    pairs = list(flags)
    widest = max((len(flag) for flag, _ in pairs if len(flag) <= _WIDEST), default=0)
    return [f"#   {flag:{widest}}  {why}" for flag, why in pairs]


def comment(text: str) -> str:
    """Return `text` as one comment line, even if it contains line breaks."""
    return "# " + " ".join(text.split())


def slug(name: str) -> str:
    """Return `name` as a part of a file name, and of the patterns from which Slurm makes file names.

    >>> slug("my training; no. 1")
    'my-training-no.-1'
    """
    return re.sub(r"[^\w.+-]+", "-", name).strip("-.") or "job"


@dataclass(frozen=True, slots=True)
class Answer:
    """Exit code and output of a command."""

    code: int
    out: str = ""
    err: str = ""


Ask: TypeAlias = Callable[[Sequence[str]], Answer]
"""Runs a command; tests pass their own."""


def run_command(words: Sequence[str], *, timeout_s: float = 60) -> Answer:
    """Run a command to its end; it has its own session, so that a Ctrl-C does not interrupt it."""
    try:
        ended = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            check=False,
            timeout=timeout_s,
            start_new_session=True,
        )
    except (FileNotFoundError, PermissionError):
        return Answer(_NOT_FOUND, err=f"there is no {words[0]} on this machine")
    except subprocess.TimeoutExpired:
        return Answer(TIMED_OUT, err=f"{words[0]} did not answer within {timeout_s:g} s")
    return Answer(ended.returncode, ended.stdout, ended.stderr)
