"""Which source of a script is measured: where it is, and the commit of its repository."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

_PATIENCE_S = 20.0
"""For an answer of git, which looks at all files of a repository."""


def source_of(script: Path) -> dict[str, str]:
    """Return the folder of a script and, where git keeps the script, its commit.

    The commit ends in ``-dirty`` where files that git keeps are not as they are there. Nothing of the
    repository is written or locked.

    Args:
        script: its path.
    """
    folder = script.absolute().parent
    told = {"folder": str(folder)}
    if _git(folder, ["ls-files", "--error-unmatch", "--", script.name]):
        commit = _git(folder, ["rev-parse", "--verify", "--quiet", "HEAD"])
        changed = _git(folder, ["status", "--porcelain", "--untracked-files=no"]) if commit else None
        if changed is not None:
            told["commit"] = f"{commit}-dirty" if changed else f"{commit}"
    return told


def _git(folder: Path, words: Sequence[str]) -> str | None:
    """Return what git answers; None where there is no git, or it knows nothing."""
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(folder), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return None if done.returncode else done.stdout.decode(errors="replace").strip()
