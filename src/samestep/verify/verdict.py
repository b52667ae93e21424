"""The report of a verification: its verdict, its findings, and their codes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Verdict: TypeAlias = Literal["same", "same but for exceptions", "inconclusive", "different"]

RunCause: TypeAlias = Literal["steps-differ", "crash", "refused", "hang", "silent-copies", "number-of-steps"]
BatchCause: TypeAlias = Literal[
    "no-set-epoch",
    "overlapping-shards",
    "batch-times-n",
    "padded-samples",
    "samples-left-out",
    "skipped-step",
]
OrderCause: TypeAlias = Literal[
    "other-order", "other-samples", "folder-order", "set-order", "padded-evaluation"
]
RateCause: TypeAlias = Literal["lr-times-n", "schedule-n-times", "learning-rate", "weight-decay-times-n"]
SyncCause: TypeAlias = Literal[
    "replicas-differ-at-start",
    "buffers-differ-at-start",
    "replicas-diverge",
    "replicas-differ-in-step",
    "parameters-missing",
    "not-in-optimizer",
    "never-averaged",
    "accumulation-not-averaged",
    "sum-not-mean",
    "divided-twice",
]
ValueCause: TypeAlias = Literal[
    "gradient-scale",
    "mean-of-means",
    "gradient",
    "gradient-norm",
    "loss",
    "loss-only",
    "update",
    "parameters",
]
PrintCause: TypeAlias = Literal["local-metric", "printed", "printed-text", "local-print"]
ScriptCause: TypeAlias = Literal[
    "unseeded-data", "unseeded", "unsteady", "nan-loss", "zero-loss", "not-compared"
]
RankCause: TypeAlias = Literal[
    "batch-norm-local",
    "random-per-worker",
    "random-alike-on-workers",
    "augmentation-per-worker",
    "compressed-gradients",
]
GoldenCause: TypeAlias = Literal["model-changed", "dropout-rate", "optimizer-changed", "initial-weights"]
ResumedCause: TypeAlias = Literal[
    "resumed-short",
    "resumed-weights",
    "resumed-repeats",
    "resumed-skips",
    "resumed-other-order",
    "resumed-rate",
    "resumed-optimizer",
    "resumed-draws",
    "not-resumed",
]
Cause: TypeAlias = Literal[
    GoldenCause,
    ResumedCause,
    RunCause,
    BatchCause,
    OrderCause,
    RateCause,
    SyncCause,
    ValueCause,
    PrintCause,
    ScriptCause,
    RankCause,
]
"""Stable codes of differences between runs; the guide `verify` explains each."""
ScriptNote: TypeAlias = Literal[
    "single-precision",
    "no-optimizer",
    "no-gradient",
    "no-change",
    "optimizer-holds-other",
    "loss-without-graph",
    "gradients-not-zeroed",
    "gradients-thrown-away",
    "eval-not-undone",
    "train-mode-in-evaluation",
    "schedule-before-optimizer",
    "amp-steps-skipped",
    "clip-before-unscale",
    "softmax-before-loss",
    "loss-broadcast",
    "loader-workers-draw-same",
    "same-order-in-epochs",
    "rows-not-used",
    "updates-stop",
    "draws-in-evaluation",
    "stale-buffers-in-evaluation",
    "saved-state-differs",
]
RankNote: TypeAlias = Literal[
    "several-writers",
    "folders-by-clock",
    "module-keys",
    "own-address",
    "device-of-rank-0",
    "threads-of-all-cores",
]
NoteCode: TypeAlias = Literal[ScriptNote, RankNote]
"""Stable codes of notes, which are no differences between runs; the guide `verify` explains each.

A `ScriptNote` is about the script on one worker, a `RankNote` about several ranks.
"""
Origin: TypeAlias = Literal["one worker", "golden", "uninterrupted"]
"""The reference of a comparison: a run on one worker, one of an earlier day, or one that was not ended."""
Gravity: TypeAlias = Literal["fault", "inconclusive", "exception", "note"]
"""What a finding does to the verdict: it makes the runs different, leaves that open, is an exception to "the
same", or does nothing."""

NotCompared: TypeAlias = Literal["evaluation", "second-epoch", "parameters", "loss", "later-steps"]
"""Stable codes of what a verification did not compare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One difference, one fault of the script itself, or one note."""

    cause: Cause | NoteCode  # its code
    message: str  # what was found, and what to do
    workers: int  # number of workers of the run
    step: int | None = None  # first step that shows it, from 0; None if it belongs to no step
    # largest deviation that it causes; None if that is not a finite number
    max_relative_deviation: float | None = None
    # a fault, a legitimate difference between ranks, or a note
    kind: Literal["fault", "exception", "note"] = "fault"
    ranks: Sequence[int] = ()  # ranks that it concerns, if not all
    place: tuple[str, int] | None = None  # file and line of the script, if known
    # qualified name of the first module that differs, or the class of a top-level one; empty if it is not
    # known
    module: str = ""
    # whether that module differs in forward or in backward; None without a module
    phase: Literal["forward", "backward"] | None = None
    advice: str = ""  # the part of the message that names what to do; empty if none is apart

    @property
    def gravity(self) -> Gravity:
        """Its effect on the verdict."""
        return "inconclusive" if self.kind == "fault" and self.cause in _UNKNOWN else self.kind

    def as_json(self) -> dict[str, Any]:
        """Return the finding as ``samestep verify --json`` prints it."""
        file, line = self.place or (None, None)
        return {
            "code": self.cause,
            "gravity": self.gravity,
            "message": self.message,
            "workers": self.workers,
            "ranks": list(self.ranks),
            "step": self.step,
            "file": file,
            "line": line,
            "module": self.module or None,
            "phase": self.phase,
            "max_relative_deviation": self.max_relative_deviation,
        }


_UNKNOWN: frozenset[Cause | NoteCode] = frozenset(
    ("refused", "unseeded", "unseeded-data", "nan-loss", "zero-loss", "not-compared", "not-resumed")
)
"""Causes that leave open whether the runs are the same."""
_VERDICTS: dict[Gravity, Verdict] = {
    "fault": "different",
    "inconclusive": "inconclusive",
    "exception": "same but for exceptions",
}
"""Verdict of the gravest finding, the gravest first."""


def faults_of(findings: Sequence[Finding]) -> list[Finding]:
    """Return the faults among some findings."""
    return [finding for finding in findings if finding.kind == "fault"]


def verdict_of(findings: Sequence[Finding]) -> Verdict:
    """Return the verdict that findings lead to."""
    gravities = {finding.gravity for finding in findings}
    return next((verdict for gravity, verdict in _VERDICTS.items() if gravity in gravities), "same")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The comparison of one number of workers with one worker."""

    workers: int  # number of workers
    steps: int  # number of compared steps
    deviations: dict[str, float]  # largest relative deviation of each quantity, by name
    is_rounding: bool  # whether rounding explains all deviations
    findings: Sequence[Finding]  # the differences

    @property
    def verdict(self) -> Verdict:
        """The verdict on this number of workers."""
        return verdict_of(self.findings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The comparison of all numbers of workers with one worker."""

    rows: Sequence[Row]  # one for each number of workers
    findings: Sequence[Finding]  # faults of the script itself, and notes about it, on any number of workers
    steps: int  # number of steps of the reference
    # what was not compared, in words, by code
    not_compared: Mapping[NotCompared, str] = field(default_factory=dict)
    reference: Origin = "one worker"  # what the runs are compared with

    @property
    def all_findings(self) -> Sequence[Finding]:
        """Findings of the script and of each number of workers."""
        return [*self.findings, *(finding for row in self.rows for finding in row.findings)]

    @property
    def verdict(self) -> Verdict:
        """The worst verdict."""
        return verdict_of(self.all_findings)

    def as_json(self) -> dict[str, Any]:
        """Return the report as ``samestep verify --json`` prints it."""
        return {
            "verdict": self.verdict,
            "same": self.verdict == "same",
            "workers": [row.workers for row in self.rows],
            "steps": self.steps,
            "reference": self.reference,
            "not_seen": list(self.not_compared.values()),
            "not_compared": list(self.not_compared),
            "max_relative_deviation": {
                str(row.workers): max(row.deviations.values(), default=0.0) for row in self.rows
            },
            "findings": [finding.as_json() for finding in self.all_findings],
        }
