"""Holds the result of one check: rows to print, findings for the user, facts to compare between ranks."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Row: TypeAlias = tuple[str, str]
"""A name and a value; a row with an empty name continues the previous row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Problem or note for the user.

    Args:
        text: description, and what to do.
        hurts: whether it makes a run fail, compute something wrong, or slow.
    """

    text: str
    hurts: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Result of one check.

    Args:
        rows: for readers, in the order in which they are printed.
        findings: problems and notes.
        facts: for programs, and for the comparison of ranks; plain JSON.
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
