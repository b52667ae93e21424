"""Runs commands of samestep for experiments, as a user types them."""

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from samestep.base.errors import WorkerFailed

COMMAND = (sys.executable, "-m", "samestep")


def json_of(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the JSON object that ``samestep ARGUMENTS --json`` prints.

    Raises:
        WorkerFailed: the command failed; the message has its last line.
    """
    command = [*COMMAND, *arguments, "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    return parsed(arguments, ended.returncode, ended.stdout, ended.stderr)


def parsed(arguments: Sequence[str], code: int, out: str, err: str) -> dict[str, Any]:
    """Return the JSON object in the output of a command that has ended.

    Raises:
        WorkerFailed: the command failed.
    """
    if code or not out.strip():
        last = (err.strip().splitlines() or ["without a message"])[-1]
        raise WorkerFailed(f"samestep {' '.join(arguments)} ended with code {code}: {last}", exit_code=1)
    record: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return record
