"""Holds the results of one rank's checks, as a value that is sent to rank 0."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from samestep.studies.doctor.check_result import Finding, Part, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """Results of the checks of one rank.

    Args:
        rank: number of the rank.
        size: number of ranks of the job, according to its launcher.
        host: the name of its host.
        summary: the line that sums up launcher, device, back end and threads.
        rows: for readers.
        findings: problems and notes.
        facts: for programs, and for the comparison of ranks.
    """

    rank: int
    size: int
    host: str
    summary: str
    rows: tuple[Row, ...] = ()
    findings: tuple[Finding, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, part: Part, *, rank: int, size: int, host: str, summary: str) -> "Examination":
        """Return the examination of one rank from the results of its checks."""
        return cls(
            rank=rank,
            size=size,
            host=host,
            summary=summary,
            rows=part.rows,
            findings=part.findings,
            facts=part.facts,
        )

    def to_json(self) -> str:
        """Return the examination as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Examination":
        """Return the examination that `to_json` wrote."""
        fields: dict[str, Any] = json.loads(text)
        fields["rows"] = tuple((name, value) for name, value in fields["rows"])
        fields["findings"] = tuple(Finding(**one) for one in fields["findings"])
        return cls(**fields)
