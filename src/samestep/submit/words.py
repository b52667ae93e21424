"""Text that a shell, or sbatch, reads back as what was meant."""

import re
import shlex
from collections.abc import Iterable, Sequence

from samestep.base.errors import UsageError

WIDTH = 100
_WIDEST = 44
_PLAIN = re.compile(r"[\w@%+=:,./\[\]-]+", re.ASCII)


def quoted(words: Iterable[str]) -> list[str]:
    r"""Return `words` as bash reads them back, one by one, each on one line: a comment may hold it.

    >>> print(*quoted(["a b", "two\nlines"]))
    'a b' $'two\nlines'
    """
    return [_on_one_line(word) if "\n" in word else shlex.quote(word) for word in words]


def _on_one_line(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"$'{escaped}'"


def directive(flag: str, value: object = "") -> str:
    r"""Return one of sbatch's lines; sbatch reads quotes and backslashes, but is no shell.

    >>> directive("--job-name", 'an "odd" name')
    '#SBATCH --job-name="an \\"odd\\" name"'
    """
    text = str(value)
    if re.search(r"[\n\r\0]", flag + text):
        raise UsageError(f"{flag} {text!r} holds a line break, which no line of a job can.")
    if not text:
        return f"#SBATCH {flag}"
    if not _PLAIN.fullmatch(text):
        text = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"#SBATCH {flag}={text}"


def command(*parts: Sequence[str], width: int = WIDTH) -> str:
    r"""Return words that are quoted already as one command; each part begins on a line of its own.

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
    """Return comment lines that say what each flag is for, the reasons below each other."""
    pairs = list(flags)
    widest = max((len(flag) for flag, _ in pairs if len(flag) <= _WIDEST), default=0)
    return [f"#   {flag:{widest}}  {why}" for flag, why in pairs]


def comment(text: str) -> str:
    """Return `text` as one comment line, whatever it holds."""
    return "# " + " ".join(text.split())


def slug(name: str) -> str:
    """Return `name` as part of a file's name, and of the patterns that Slurm makes file names of.

    >>> slug("my training; no. 1")
    'my-training-no.-1'
    """
    return re.sub(r"[^\w.+-]+", "-", name).strip("-.") or "job"
