"""Makes one report from the results of all ranks, as text and as JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from samestep.studies.doctor import links
from samestep.studies.doctor.check_result import Finding, Row
from samestep.studies.doctor.gather import Gathered
from samestep.studies.doctor.pair_measurement import Link
from samestep.studies.doctor.rank_conflicts import across
from samestep.studies.doctor.rank_results import Examination
from samestep.studies.doctor.text import finding_lines, folded, merged, numbers_text, ranks_text, row_lines

Owned: TypeAlias = tuple[tuple[int, ...], Finding]
"""The ranks that a finding is about, and the finding; no ranks if it is about all together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Report of all ranks.

    Args:
        examinations: those of the ranks that joined the checks, in rank order.
        rows: rows of the joint checks.
        links: the links between ranks.
        findings: the findings, each with its ranks.
    """

    examinations: Sequence[Examination]
    rows: Sequence[Row] = ()
    links: Sequence[Link] = ()
    findings: Sequence[Owned] = field(default_factory=tuple)

    @property
    def hurts(self) -> bool:
        """Whether a finding is a problem."""
        return any(finding.hurts for _, finding in self.findings)


def of_one(examination: Examination, *more: Finding) -> Report:
    """Return the report of a single rank.

    Args:
        examination: that of the rank.
        more: further findings, such as why the rank could not reach the others.
    """
    owned = [((examination.rank,), finding) for finding in examination.findings]
    return Report(examinations=[examination], findings=[*owned, *(((), finding) for finding in more)])


def of_all(gathered: Gathered) -> Report:
    """Return the report of all ranks."""
    every = gathered.examinations
    hosts = {one.rank: one.host for one in every}
    owned: list[Owned] = [((one.rank,), finding) for one in every for finding in one.findings]
    owned += [((rank,), finding) for rank, found in gathered.tried.items() for finding in found]
    backend = every[0].facts.get("backend")
    broken = Finding(text="This rank joined the checks, and then stopped or hung. See its output.")
    owned += [((rank,), broken) for rank in gathered.broken]
    whole = [link for link in gathered.links if not {link.a, link.b} & set(gathered.broken)]
    owned += [((), finding) for finding in links.judge(whole, hosts, backend=backend)]
    owned += [((), finding) for finding in across(every)]
    if gathered.absent:
        owned.append(((), _absent(gathered.absent, every[0].size)))
    return Report(examinations=every, rows=gathered.rows, links=gathered.links, findings=owned)


def lines(report: Report) -> Iterator[str]:
    """Yield the report as lines of text."""
    first, several = report.examinations[0], len(report.examinations) > 1
    yield first.summary
    yield ""
    if several:
        rows = [
            _places(report.examinations),
            *folded({one.rank: _but_place(one) for one in report.examinations}),
        ]
    else:
        rows = list(first.rows)
    yield from row_lines([*rows, *report.rows])
    if report.links:
        yield ""
        yield from (f"  {line}".rstrip() for line in links.table(report.links))
    found = list(finding_lines(report.findings, {one.rank: one.host for one in report.examinations}))
    if found:
        yield ""
        yield from found


def record(report: Report) -> dict[str, Any]:
    """Return the report as JSON data."""
    return {
        "summary": report.examinations[0].summary,
        "ranks": [{"rank": one.rank, "host": one.host, **one.facts} for one in report.examinations],
        "links": [asdict(link) for link in report.links],
        "findings": [{"ranks": ranks, **asdict(finding)} for ranks, finding in merged(report.findings)],
        "hurts": report.hurts,
    }


def _absent(ranks: Sequence[int], size: int) -> Finding:
    return Finding(
        text=f"{ranks_text(ranks)} of {size} did not join the checks. Read their output: they must start, "
        "run samestep doctor, and reach rank 0 within the time of --wait."
    )


def _places(every: Sequence[Examination]) -> Row:
    hosts: dict[str, list[int]] = {}
    for one in every:
        hosts.setdefault(one.host, []).append(one.rank)
    return "ranks", "; ".join(f"{numbers_text(ranks)} on {host}" for host, ranks in hosts.items())


def _but_place(one: Examination) -> list[Row]:
    """Return the rows of a rank without its place, which differs for each rank and has its own row."""
    return [row for row in one.rows if row[0] != "place"]
