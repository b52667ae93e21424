"""What one look at one thing found: rows to read, findings to act on, facts to compare between ranks."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Row: TypeAlias = tuple[str, str]
"""A name and a value; an empty name goes on with the row before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something a user should know.

    Args:
        text: what it is, and what to do.
        hurts: whether a run would fail, do the wrong thing or be slow because of it.
    """

    text: str
    hurts: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one look found.

    Args:
        rows: for people, in the order in which they are shown.
        findings: what to know and what to do.
        facts: for machines, and for the comparison of ranks; plain JSON.
    """

    rows: tuple[Row, ...] = ()
    findings: tuple[Finding, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


def joined(parts: Iterable[Part]) -> Part:
    """Return several parts as one, in their order."""
    every = list(parts)
    facts: dict[str, Any] = {}
    for part in every:
        facts |= part.facts
    return Part(
        rows=tuple(row for part in every for row in part.rows),
        findings=tuple(finding for part in every for finding in part.findings),
        facts=facts,
    )
