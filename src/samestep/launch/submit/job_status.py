"""Defines the state of a job, as its scheduler reports it."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """The present state of a job."""

    words: str  # the state in words
    log: Path | None = None  # the file with its output, if there is one
    waits: bool = False  # whether it has not started
    exit_code: int | None = None  # its exit code; None while it has not ended
    cut_off: bool = False  # whether it was ended from outside, and not by its own script
    is_known: bool = True  # whether the scheduler has answered
    elapsed_s: float | None = None  # seconds that it has run, if the scheduler reports them
    limit_s: float | None = None  # its time limit in seconds; None for none
    expected_start: str = ""  # when the scheduler expects it to start; empty if it does not
