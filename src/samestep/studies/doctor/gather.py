"""Collects the results of all ranks at rank 0, and runs the joint checks of all ranks.

::

    every rank   posts its result, and the address of its server
    rank 0       waits for all ranks, with a timeout; posts the addresses of those that joined the checks
    every rank   measures its links; posts them
    rank 0       posts whether all ranks still respond
    every rank   if so, runs the joint checks with the others; posts the findings
    rank 0       reads the findings, makes the report, and posts the exit code

No process group is created before the joint checks, because the doctor is for ranks that cannot join one.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from samestep.base.units import format_ranks
from samestep.studies.doctor import links
from samestep.studies.doctor.links import Address
from samestep.studies.doctor.pair_measurement import Link, LinkServer
from samestep.studies.doctor.rank_conflicts import conflicts
from samestep.studies.doctor.report import Owned, Report
from samestep.studies.doctor.results import Finding, RankResult, Result, ResultStore, problem

_MEASURE_S = 25.0
_GRACE_S = 10.0


def gather(
    store: ResultStore,
    own: RankResult,
    server: LinkServer,
    *,
    joint: Callable[[], Result] = Result,
    wait_s: float,
    measure_s: float = _MEASURE_S,
) -> Report | None:
    """Send this rank's result to rank 0, measure links and run the joint checks; all ranks call this.

    `joint` runs the joint checks within their time limits; `wait_s` is for the other ranks, `measure_s` for
    the measurements. The report is returned at rank 0, and None on the others.

    Raises:
        ConnectionError: rank 0 left.
        TimeoutError: rank 0 did not post which ranks joined the checks.
    """
    addresses = _roll(store, own, server, time.monotonic() + wait_s)
    end = time.monotonic() + measure_s
    measured = links.measure(store, addresses, server, rank=own.rank, deadline=end)
    store.post(f"links/{own.rank}", [asdict(one) for one in measured])
    silent = _silent(store, own, addresses, end)
    # The joint checks need all ranks, and would only wait for a missing one.
    result = joint() if silent == [] and None not in addresses else None
    if result is not None:
        store.post(f"found/{own.rank}", [asdict(one) for one in result.findings])
    return _report(store, addresses, silent or [], result) if own.rank == 0 else None


def agree_on_exit_code(store: ResultStore, rank: int, report: Report | None) -> int:
    """Return the exit code of all ranks; rank 0 posts it, and waits until the others have read it."""
    deadline = time.monotonic() + _GRACE_S
    if report is None:
        decided = store.read("code", deadline=deadline + _MEASURE_S)
        store.post(f"received/{rank}", "yes")
        return int(decided) if decided is not None else 1
    store.post("code", report.exit_code)
    for other in report.ranks[1:]:
        store.read(f"received/{other.rank}", deadline=deadline)
    return report.exit_code


def _roll(store: ResultStore, own: RankResult, server: LinkServer, deadline: float) -> list[Address | None]:
    """Return the addresses of the ranks that joined the checks; None for a missing rank."""
    address = Address(host=own.host, ip=server.address, port=server.port, token=server.token.hex())
    store.post(f"rank/{own.rank}", {"result": asdict(own), "address": asdict(address)})
    if own.rank == 0:
        records = store.read_all("rank", range(own.size), deadline=deadline).values()
        store.post("roll", [one and one["address"] for one in records])
    roll = store.read("roll", deadline=deadline + _GRACE_S)
    if roll is None:
        raise TimeoutError("rank 0 did not post which ranks joined the checks")
    addresses = [one and Address(**one) for one in roll]
    if len(addresses) != own.size or addresses[own.rank] is None:
        raise TimeoutError("rank 0 stopped waiting for this rank, or has another number of ranks")
    return addresses


def _silent(
    store: ResultStore, own: RankResult, addresses: Sequence[Address | None], deadline: float
) -> list[int] | None:
    """Return the ranks that stopped responding, according to rank 0; None if rank 0 did."""
    if own.rank == 0:
        answers = store.read_all("links", _present(addresses), deadline=deadline + _GRACE_S)
        store.post("silent", [rank for rank, answer in answers.items() if answer is None])
    silent: list[int] | None = store.read("silent", deadline=deadline + 2 * _GRACE_S)
    return silent


def _report(
    store: ResultStore, addresses: Sequence[Address | None], silent: Sequence[int], result: Result | None
) -> Report:
    """Return the report of all ranks from what they posted."""
    present = _present(addresses)
    records = store.read_all("rank", present, deadline=0.0)
    ranks = [RankResult.from_record(one["result"]) for one in records.values()]
    posted = store.read_all("links", present, deadline=0.0)
    measured = [Link(**one) for every in posted.values() for one in every or ()]
    found: dict[int, Any] = {}
    if result is not None:
        found = store.read_all("found", present, deadline=time.monotonic() + _GRACE_S)
        silent = [rank for rank, findings in found.items() if findings is None]
    return Report(
        ranks=ranks,
        rows=() if result is None else result.rows,
        links=sorted(measured, key=lambda link: (link.a, link.b)),
        findings=[
            *(((one.rank,), finding) for one in ranks for finding in one.findings),
            *(((rank,), Finding(**one)) for rank, findings in found.items() for one in findings or ()),
            *_about_all(ranks, measured, silent),
        ],
    )


def _about_all(
    results: Sequence[RankResult], measured: Sequence[Link], broken: Sequence[int]
) -> Iterator[Owned]:
    size, hosts = results[0].size, {one.rank: one.host for one in results}
    for rank in broken:
        yield (rank,), problem("This rank joined the checks, and then stopped or hung. See its output.")
    whole = [link for link in measured if not {link.a, link.b} & set(broken)]
    for finding in links.judge(whole, hosts, backend=results[0].facts.get("backend")):
        yield (), finding
    for finding in conflicts(results):
        yield (), finding
    if absent := [rank for rank in range(size) if rank not in hosts]:
        text = (
            f"{format_ranks(absent)} of {size} did not join the checks. Read their output: they must start, "
            "run samestep doctor, and reach rank 0 within the time of --wait."
        )
        yield (), problem(text)


def _present(addresses: Sequence[Address | None]) -> list[int]:
    return [rank for rank, address in enumerate(addresses) if address is not None]
