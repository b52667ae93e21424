"""Finds the repository and the commit that a script belongs to."""

import subprocess
from pathlib import Path

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
