"""What one rank found out about itself, as a value that travels to rank 0."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from samestep.doctor.part import Finding, Part, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """One rank.

    Args:
        rank: which.
        size: ranks of the job, as its launcher says.
        host: the name of its host.
        summary: the line that says what was found and decided.
        rows: for people.
        findings: what to know and what to do.
        facts: for machines, and for the comparison of ranks.
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
        """Return what was found as that of one rank."""
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
