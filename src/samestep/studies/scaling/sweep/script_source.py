"""Records the source of a measured script: its folder and its commit."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

_PATIENCE_S = 20.0
"""The timeout of git, which checks all files of a repository."""


def source_of(script: Path) -> dict[str, str]:
    """Return the folder of a script and, if git tracks the script, its commit.

    The commit ends in ``-dirty`` if tracked files were changed. Nothing in the repository is written or
    locked.

    Args:
        script: its path.
    """
    folder = script.absolute().parent
    source = {"folder": str(folder)}
    if _git(folder, ["ls-files", "--error-unmatch", "--", script.name]):
        commit = _git(folder, ["rev-parse", "--verify", "--quiet", "HEAD"])
        changed = _git(folder, ["status", "--porcelain", "--untracked-files=no"]) if commit else None
        if changed is not None:
            source["commit"] = f"{commit}-dirty" if changed else f"{commit}"
    return source


def _git(folder: Path, words: Sequence[str]) -> str | None:
    """Return the output of git; None if it fails, empty if there is no git."""
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
