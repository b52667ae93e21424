"""Collects and compares the results of all ranks, runs their joint checks, and formats the report.

::

    every rank   posts its result
    rank 0       waits for all ranks, with a timeout; posts which ones joined the checks
    every rank   if all did, runs the joint checks with the others; posts the findings
    rank 0       reads the findings, makes the report, and posts the exit code

No process group is created before the joint checks, because the doctor is for ranks that cannot join one. In
the report a value that all ranks share is printed once, others with their ranks.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeAlias

from samestep.base.units import format_ranks, ranges
from samestep.doctor.context import (
    Finding,
    RankResult,
    Result,
    ResultStore,
    Row,
    grouped,
    note,
    problem,
    rows,
)

Owned: TypeAlias = tuple[Sequence[int], Finding]
"""The ranks that a finding is about, and the finding; no ranks if it is about all together."""

# Values that differ between ranks are listed in one line up to this length.
_LISTED = 100

_GRACE_S = 10.0  # to read or post what is ready, over a slow network
_JOINT_S = 25.0  # how much later than another rank rank 0 can end the joint checks
# Ranks that differ in the first cannot, or must not, train together. Those that differ in the others
# sometimes can.
_MUST = ("samestep", "torch", "nccl")
_SHOULD = ("python", "numpy", "cuda", "driver")


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
    first, hosts = report.ranks[0], {rank.rank: rank.host for rank in report.ranks}
    yield first.summary
    yield ""
    shown = first.rows
    if len(hosts) > 1:
        text = partial(ranges, separator=", ")
        places = "; ".join(f"{text(ranks)} on {host}" for host, ranks in grouped(hosts).items())
        # The place differs for each rank, so that it has a row of its own.
        rows_of = {rank.rank: [row for row in rank.rows if row[0] != "place"] for rank in report.ranks}
        shown = [("ranks", places), *folded(rows_of)]
    yield from row_lines([*shown, *report.rows])
    if report.findings:
        yield ""
        yield from finding_lines(report.findings, hosts)


def record(report: Report) -> dict[str, Any]:
    """Return the report as JSON data."""
    return {
        "summary": report.ranks[0].summary,
        "ranks": [{"rank": rank.rank, "host": rank.host, **rank.facts} for rank in report.ranks],
        "findings": [{"ranks": ranks, **asdict(finding)} for ranks, finding in merged(report.findings)],
        "hurts": bool(report.exit_code),
    }


def row_lines(shown: Sequence[Row]) -> Iterator[str]:
    """Yield rows as lines."""
    for name, value in shown:
        yield f"  {name:<12}{value}".rstrip()


def finding_lines(findings: Sequence[Owned], hosts: Mapping[int, str]) -> Iterator[str]:
    """Yield the findings, problems first; equal findings of several ranks are one line."""
    for ranks, finding in sorted(merged(findings), key=lambda item: not item[1].hurts):
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


def folded(rows_of: Mapping[int, Sequence[Row]]) -> list[Row]:
    """Return the rows of several ranks as one list."""
    blocks: dict[str, dict[int, tuple[str, ...]]] = {}  # values by name and rank
    for rank, rank_rows in rows_of.items():
        name = ""
        for own_name, value in rank_rows:
            name = own_name or name
            block = blocks.setdefault(name, dict.fromkeys(rows_of, ()))
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


def gather(
    store: ResultStore, rank_result: RankResult, *, joint: Callable[[], Result] = Result, wait_s: float
) -> Report | None:
    """Send this rank's result to rank 0, and run the joint checks; all ranks call this.

    `joint` runs the joint checks within their time limits; `wait_s` is for the other ranks. The report is
    returned at rank 0, and None on the others.

    Raises:
        ConnectionError: rank 0 left.
        TimeoutError: rank 0 did not post which ranks joined the checks.
    """
    present = _present(store, rank_result, time.monotonic() + wait_s)
    # The joint checks need all ranks, and would only wait for a missing one.
    result = joint() if len(present) == rank_result.size else None
    if result is not None:
        store.post(f"found/{rank_result.rank}", [asdict(finding) for finding in result.findings])
    return _report(store, present, result) if rank_result.rank == 0 else None


def agree_on_exit_code(store: ResultStore, rank: int, report: Report | None) -> int:
    """Return the exit code of all ranks; rank 0 posts it, and waits until the others have read it."""
    deadline = time.monotonic() + _GRACE_S
    if report is None:
        decided = store.read("code", deadline=deadline + _JOINT_S)
        store.post(f"received/{rank}", "yes")
        return int(decided) if decided is not None else 1
    store.post("code", report.exit_code)
    for rank_result in report.ranks[1:]:
        store.read(f"received/{rank_result.rank}", deadline=deadline)
    return report.exit_code


def _present(store: ResultStore, rank_result: RankResult, deadline: float) -> list[int]:
    """Return the ranks that joined the checks."""
    store.post(f"rank/{rank_result.rank}", asdict(rank_result))
    if rank_result.rank == 0:
        posted = store.read_all("rank", range(rank_result.size), deadline=deadline)
        store.post(
            "present", [[rank for rank, result in posted.items() if result is not None], rank_result.size]
        )
    posted_present = store.read("present", deadline=deadline + _GRACE_S)
    if posted_present is None:
        raise TimeoutError("rank 0 did not post which ranks joined the checks")
    present, size = posted_present
    if size != rank_result.size or rank_result.rank not in present:
        raise TimeoutError("rank 0 stopped waiting for this rank, or has another number of ranks")
    return list(present)


def _report(store: ResultStore, present: Sequence[int], result: Result | None) -> Report:
    """Return the report of all ranks from what they posted."""
    records = store.read_all("rank", present, deadline=0.0)
    ranks = [RankResult.from_record(record) for record in records.values()]
    posted: dict[int, Any] = {}
    if result is not None:
        posted = store.read_all("found", present, deadline=time.monotonic() + _GRACE_S)
    silent = [rank for rank, findings in posted.items() if findings is None]
    return Report(
        ranks=ranks,
        rows=() if result is None else result.rows,
        findings=[
            *(((record.rank,), finding) for record in ranks for finding in record.findings),
            *(((rank,), Finding(**fields)) for rank, findings in posted.items() for fields in findings or ()),
            *_about_all(ranks, silent),
        ],
    )


def _about_all(results: Sequence[RankResult], silent: Sequence[int]) -> Iterator[Owned]:
    size, present = results[0].size, {result.rank for result in results}
    for rank in silent:
        yield (rank,), problem("This rank joined the checks, and then stopped or hung. See its output.")
    for finding in conflicts(results):
        yield (), finding
    if absent := [rank for rank in range(size) if rank not in present]:
        text = (
            f"{format_ranks(absent)} of {size} did not join the checks. Read their output: they must start, "
            "run samestep doctor, and reach rank 0 within the time of --wait."
        )
        yield (), problem(text)


def conflicts(every: Sequence[RankResult]) -> Iterator[Finding]:
    """Yield a finding for each difference between the ranks that joined the checks."""
    for name in (*_MUST, *_SHOULD):
        if text := _differing({result.rank: result.facts.get("versions", {}).get(name) for result in every}):
            yield Finding(
                text=f"The ranks differ in their version of {name}: {text}. Start all of them from one "
                "environment.",
                hurts=name in _MUST,
            )
    for name, subject in (("kind", "kind of device"), ("backend", "back end")):
        if text := _differing({result.rank: result.facts.get(name) for result in every}):
            yield problem(f"The ranks differ in their {subject}: {text}. Compare their cards and variables.")
    if text := _differing({result.rank: result.facts.get("threads", {}).get("count") for result in every}):
        yield problem(
            f"The ranks compute with different numbers of threads: {text}. The slowest sets the pace, and "
            "the same bits need the same number: set OMP_NUM_THREADS, or give all ranks as many processors."
        )
    yield from _about_shared_devices(every)
    yield from _about_sizes(every)
    for host in sorted({result.host for result in every}):
        yield from _about_cpus([result for result in every if result.host == host], host)


def _about_shared_devices(every: Sequence[RankResult]) -> Iterator[Finding]:
    """Find ranks that share a device, which their back end refuses."""
    backend, uuids = every[0].facts.get("backend"), [str(result.facts.get("uuid") or "") for result in every]
    if backend and len(every) == every[0].size:
        from samestep.ranks.rendezvous.handshake import shared_device  # loads torch, as the back end did

        if reason := shared_device(backend, uuids):
            yield problem(f"{reason[0].upper()}{reason[1:]}")


def _about_sizes(every: Sequence[RankResult]) -> Iterator[Finding]:
    """Compare the launcher's layout with the hosts' names."""
    if text := _differing({result.rank: result.size for result in every}):
        yield problem(f"The ranks differ in the number of ranks: {text}. Start all of them in one job.")
    hosts = {result.host for result in every}
    node_counts = {result.facts.get("place", {}).get("nodes") for result in every}
    if len(every) == every[0].size and node_counts == {1} and len(hosts) > 1:
        yield note(
            f"The launcher reports one node for all ranks, but they are on {len(hosts)} hosts "
            f"({', '.join(sorted(hosts))}). Set LOCAL_RANK, LOCAL_WORLD_SIZE, NODE_RANK and NNODES, unless "
            "the hosts are containers of one node."
        )


def _about_cpus(here: Sequence[RankResult], host: str) -> Iterator[Finding]:
    """Yield a finding if ranks of a host compute with more threads than they have processors."""
    if any(result.facts.get("kind", "cpu") != "cpu" for result in here):
        return
    groups: list[tuple[set[int], list[RankResult]]] = []  # ranks whose masks overlap, with their CPUs
    for result in here:
        mask, members = set(result.facts.get("cpus", ())), [result]
        for overlapping in [group for group in groups if group[0] & mask]:
            mask |= overlapping[0]
            members = overlapping[1] + members
            groups.remove(overlapping)
        groups.append((mask, members))
    for mask, members in groups:
        threads = sum(int(result.facts.get("threads", {}).get("count", 1)) for result in members)
        count = len(mask)
        if all(set(result.facts.get("cpus", ())) == mask for result in members):
            # A quota or a scheduler can allow fewer than one mask has.
            usable = [result.facts.get("processors", {}).get("usable", count) for result in members]
            count = min(count, max(usable))
        if count and len(members) > 1 and threads > count:
            ranks = format_ranks([result.rank for result in members])
            yield problem(
                f"On {host}, {ranks} compute with {threads} threads "
                f"on {count} CPU(s): they wait for each other. Request more from the scheduler (srun "
                "--cpus-per-task), let the launcher bind each rank to its own CPUs, or set a lower "
                "OMP_NUM_THREADS."
            )


def _differing(values: Mapping[int, Any]) -> str:
    """Return which ranks have which value; an empty text if all have the same."""
    groups = grouped(values)
    listed = ", ".join(f"{value or 'none'} on {format_ranks(ranks)}" for value, ranks in groups.items())
    return listed if len(groups) > 1 else ""
