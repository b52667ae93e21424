"""From what ranks have told to the one report, for people and for machines."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from samestep.doctor import links
from samestep.doctor.agree import across
from samestep.doctor.examination import Examination
from samestep.doctor.gather import Gathered
from samestep.doctor.part import Finding, Row
from samestep.doctor.wire import Link
from samestep.doctor.words import finding_lines, folded, merged, numbers_text, ranks_text, row_lines

Owned: TypeAlias = tuple[tuple[int, ...], Finding]
"""A finding, and the ranks it is of; none where it is of all together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What is told.

    Args:
        examinations: of the ranks that are there, in rank order.
        rows: what only all ranks together found out.
        links: between them.
        findings: and whose they are.
    """

    examinations: Sequence[Examination]
    rows: Sequence[Row] = ()
    links: Sequence[Link] = ()
    findings: Sequence[Owned] = field(default_factory=tuple)

    @property
    def hurts(self) -> bool:
        """Whether something will hurt a run."""
        return any(finding.hurts for _, finding in self.findings)


def of_one(examination: Examination, *more: Finding) -> Report:
    """Return the report of a rank alone.

    Args:
        examination: its own.
        more: what else there is to tell, such as why it is alone.
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
    broken = Finding(text="This rank came, and then broke off or hung. See its output.")
    owned += [((rank,), broken) for rank in gathered.broken]
    whole = [link for link in gathered.links if not {link.a, link.b} & set(gathered.broken)]
    owned += [((), finding) for finding in links.judge(whole, hosts, backend=backend)]
    owned += [((), finding) for finding in across(every)]
    if gathered.absent:
        owned.append(((), _absent(gathered.absent, every[0].size)))
    return Report(examinations=every, rows=gathered.rows, links=gathered.links, findings=owned)


def lines(report: Report) -> Iterator[str]:
    """Yield the report for people."""
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
    """Return the report for machines."""
    return {
        "summary": report.examinations[0].summary,
        "ranks": [{"rank": one.rank, "host": one.host, **one.facts} for one in report.examinations],
        "links": [asdict(link) for link in report.links],
        "findings": [{"ranks": ranks, **asdict(finding)} for ranks, finding in merged(report.findings)],
        "hurts": report.hurts,
    }


def _absent(ranks: Sequence[int], size: int) -> Finding:
    return Finding(
        text=f"{ranks_text(ranks)} of {size} did not come. Did they start, do they reach rank 0, and do they "
        "run samestep doctor as well? See their output; --wait gives them longer."
    )


def _places(every: Sequence[Examination]) -> Row:
    hosts: dict[str, list[int]] = {}
    for one in every:
        hosts.setdefault(one.host, []).append(one.rank)
    return "ranks", "; ".join(f"{numbers_text(ranks)} on {host}" for host, ranks in hosts.items())


def _but_place(one: Examination) -> list[Row]:
    """Return the rows of a rank without the one that is different for each rank, and told otherwise."""
    return [row for row in one.rows if row[0] != "place"]
