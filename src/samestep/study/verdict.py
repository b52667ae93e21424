"""What a comparison came to."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

Verdict: TypeAlias = Literal["same", "same but for exceptions", "different"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that differs, or that may.

    Args:
        cause: its name; see the table in the guide.
        message: what was seen, and what to do.
        workers: on how many.
        step: in which it was first seen, from 0; None where it belongs to none.
        max_relative_deviation: of what it made differ; None where that is no number.
        is_exception: whether it is a named exception to "the same", proven to be the only one.
    """

    cause: str
    message: str
    workers: int
    step: int | None = None
    max_relative_deviation: float | None = None
    is_exception: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One number of workers, compared.

    Args:
        workers: how many.
        steps: compared.
        deviations: the largest relative deviation of each quantity, by name.
        is_rounding: whether they are what rounding makes of this script.
        findings: what differs.
    """

    workers: int
    steps: int
    deviations: dict[str, float]
    is_rounding: bool
    findings: Sequence[Finding]

    @property
    def verdict(self) -> Verdict:
        """What it came to."""
        if any(not finding.is_exception for finding in self.findings):
            return "different"
        return "same but for exceptions" if self.findings else "same"

    @property
    def max_relative_deviation(self) -> float:
        """The largest of all."""
        return max(self.deviations.values(), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All numbers of workers, compared with one.

    Args:
        rows: one for each.
        findings: of the script itself, on any number of workers.
        steps: that the reference made.
        not_seen: what was not compared, as a rule because the reference did not come to it in these steps.
    """

    rows: Sequence[Row]
    findings: Sequence[Finding]
    steps: int
    not_seen: Sequence[str] = ()

    @property
    def all_findings(self) -> Sequence[Finding]:
        """Of the script, and of each number of workers."""
        return [*self.findings, *(finding for row in self.rows for finding in row.findings)]

    @property
    def verdict(self) -> Verdict:
        """The worst of all."""
        verdicts = {row.verdict for row in self.rows}
        if any(not finding.is_exception for finding in self.findings) or "different" in verdicts:
            return "different"
        return "same but for exceptions" if self.findings or len(verdicts) > 1 else verdicts.pop()

    def as_json(self) -> dict[str, Any]:
        """Return it for machines."""
        return {
            "verdict": self.verdict,
            "same": self.verdict == "same",
            "workers": [row.workers for row in self.rows],
            "steps": self.steps,
            "not_seen": list(self.not_seen),
            "max_relative_deviation": {str(row.workers): row.max_relative_deviation for row in self.rows},
            "findings": [asdict(finding) for finding in self.all_findings],
        }
