"""Asks Slurm for the address of a node whose name does not resolve."""

import re
import subprocess

_ADDRESS = re.compile(r"\bNodeAddr=(\S+)")
_TIMEOUT_S = 10.0


def address_of(node: str) -> str | None:
    """Return the address at which Slurm reaches a node; None if it has no other one than the node's name."""
    try:
        answer = subprocess.run(
            ["scontrol", "show", "node", node],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = _ADDRESS.search(answer.stdout)
    return found[1] if found and found[1] != node else None
