"""Declares the options of the submission of a job; prints the job, its output and its result."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from samestep.base.console import StatusLine, inform, log
from samestep.base.errors import INTERRUPTED
from samestep.base.record import json_line
from samestep.cli.options import launch, results
from samestep.submit.follow import FollowedJob, follow


class _Console:
    """Prints the output of a job to a stream, and the times of the job below it on a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._line = StatusLine()
        self._is_at_start = True  # whether the job's output ends with a whole line

    def log(self, text: str) -> None:
        """Log a change of the job's state."""
        self._line.show("")
        inform(text)

    def write(self, output: bytes) -> None:
        """Print output of the job."""
        self._line.show("")
        _write(output, self._stream)
        self._is_at_start = output.endswith(b"\n")

    def show_times(self, text: str) -> None:
        """Show the times of the job; a line that its output has begun stays as it is."""
        if self._is_at_start:
            self._line.show(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """The options of the submission of a job, and of its result."""

    dry_run: launch.DryRun = False
    detach: launch.Detach = False
    as_json: results.AsJson = False
    quiet: launch.Quiet = False

    def show(self, text: str) -> int:
        """Print the script of a job that is not submitted, and return the exit code."""
        if self.as_json:
            print(json_line({"text": text}))
        else:
            _write(encoded(text), sys.stdout)
        return 0

    def follow(self, job: FollowedJob, file: Path) -> int:
        """Follow a job to its end, and return its exit code; Ctrl-C ends the following, not the job.

        With ``--json`` the job's output goes to stderr, since stdout has the record of the job.
        """
        code = None
        console = _Console(sys.stderr if self.as_json else sys.stdout)
        try:
            if not self.detach:
                code = follow(job, log=console.log, show=console.write, show_times=console.show_times)
        except KeyboardInterrupt:
            code = INTERRUPTED
            console.show_times("")
            log(f"{job.name} continues, and is no longer followed. To stop it: {job.stop}")
        if self.as_json:
            ended = None if code == INTERRUPTED else code
            print(json_line({"job": job.number, "file": str(file), "stop": job.stop, "exit_code": ended}))
        elif self.detach:
            print(job.number)
        return code or 0


def encoded(text: str) -> bytes:
    """Return a script as bytes; arguments that are not UTF-8 keep theirs."""
    return text.encode("utf-8", errors="surrogateescape")


def _write(text: bytes, stream: TextIO) -> None:
    stream.flush()
    stream.buffer.write(text)
    stream.buffer.flush()
