"""Formats the report of all ranks, as text and as JSON.

A value that all ranks share is printed once, others with their ranks.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeAlias

from samestep.base.units import format_ranks, ranges
from samestep.doctor.results import Finding, RankResult, Row, grouped, rows

Owned: TypeAlias = tuple[Sequence[int], Finding]
"""The ranks that a finding is about, and the finding; no ranks if it is about all together."""

# Values that differ between ranks are listed in one line up to this length.
_LISTED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Report of all ranks, which rank 0 prints."""

    ranks: Sequence[RankResult]  # those that joined the checks, in their order
    rows: Sequence[Row] = ()  # of the joint checks
    findings: Sequence[Owned] = ()

    @classmethod
    def of_one(cls, rank: RankResult, *more: Finding) -> "Report":
        """Return the report of a single rank, with further findings."""
        owned: list[Owned] = [((rank.rank,), finding) for finding in rank.findings]
        return cls(ranks=[rank], findings=[*owned, *(((), finding) for finding in more)])

    @property
    def exit_code(self) -> int:
        """1 if a finding is a problem, otherwise 0."""
        return int(any(finding.hurts for _, finding in self.findings))


def lines(report: Report) -> Iterator[str]:
    """Yield the report as lines of text."""
    first, hosts = report.ranks[0], {one.rank: one.host for one in report.ranks}
    yield first.summary
    yield ""
    shown = first.rows
    if len(hosts) > 1:
        text = partial(ranges, separator=", ")
        places = "; ".join(f"{text(ranks)} on {host}" for host, ranks in grouped(hosts).items())
        # The place differs for each rank, so that it has a row of its own.
        others = {one.rank: [row for row in one.rows if row[0] != "place"] for one in report.ranks}
        shown = [("ranks", places), *folded(others)]
    yield from row_lines([*shown, *report.rows])
    if report.findings:
        yield ""
        yield from finding_lines(report.findings, hosts)


def record(report: Report) -> dict[str, Any]:
    """Return the report as JSON data."""
    return {
        "summary": report.ranks[0].summary,
        "ranks": [{"rank": one.rank, "host": one.host, **one.facts} for one in report.ranks],
        "findings": [{"ranks": ranks, **asdict(finding)} for ranks, finding in merged(report.findings)],
        "hurts": bool(report.exit_code),
    }


def row_lines(found: Sequence[Row]) -> Iterator[str]:
    """Yield rows as lines."""
    for name, value in found:
        yield f"  {name:<12}{value}".rstrip()


def finding_lines(findings: Sequence[Owned], hosts: Mapping[int, str]) -> Iterator[str]:
    """Yield the findings, problems first; equal findings of several ranks are one line."""
    for ranks, finding in sorted(merged(findings), key=lambda one: not one[1].hurts):
        where = {hosts[rank] for rank in ranks if rank in hosts}
        on = f" on {where.pop()}" if len(where) == 1 < len(set(hosts.values())) else ""
        about = f" ({format_ranks(ranks)}{on})" if ranks and len(hosts) > 1 else ""
        yield f"{'problem' if finding.hurts else 'note'}{about}: {finding.text}"


def merged(findings: Sequence[Owned]) -> list[tuple[list[int], Finding]]:
    """Return each finding once, with all its ranks."""
    ranks: dict[Finding, set[int]] = {}
    for about, finding in findings:
        ranks.setdefault(finding, set()).update(about)
    return [(sorted(about), finding) for finding, about in ranks.items()]


def folded(found: Mapping[int, Sequence[Row]]) -> list[Row]:
    """Return the rows of several ranks as one list."""
    blocks: dict[str, dict[int, tuple[str, ...]]] = {}  # values by name and rank
    for rank, own in found.items():
        name = ""
        for own_name, value in own:
            name = own_name or name
            block = blocks.setdefault(name, dict.fromkeys(found, ()))
            block[rank] = (*block[rank], value)
    return [row for name, block in blocks.items() for row in rows(name, _folded(block))]


def _folded(values: Mapping[int, Sequence[str]]) -> list[str]:
    groups = grouped({rank: tuple(value) for rank, value in values.items()})
    if len(groups) == 1:
        return list(next(iter(groups)))
    lines = _folded_variables(values)
    for value, ranks in () if lines else groups.items():
        first, *rest = value or ("none",)
        lines += [f"{format_ranks(ranks)}: {first}", *(f"  {line}" for line in rest)]
    return lines


def _folded_variables(values: Mapping[int, Sequence[str]]) -> list[str]:
    """Fold lists of NAME=VALUE, variable by variable; return no lines for other lists."""
    tables = {rank: dict(line.partition("=")[::2] for line in lines) for rank, lines in values.items()}
    names = list(dict.fromkeys(name for table in tables.values() for name in table))
    if not all("=" in line for lines in values.values() for line in lines) or " " in "".join(names):
        return []
    lines = []
    for name in names:
        groups = grouped({rank: table.get(name) for rank, table in tables.items()})
        text = ", ".join(f"{value} on {format_ranks(ranks)}" for value, ranks in groups.items())
        text = text if len(text) <= _LISTED else f"{text[:_LISTED]} ..."
        lines.append(f"{name}={text if len(groups) > 1 else next(iter(groups))}")
    return lines
