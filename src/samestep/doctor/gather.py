"""Collects and compares the results of all ranks at rank 0, and runs the joint checks of all ranks.

::

    every rank   posts its result
    rank 0       waits for all ranks, with a timeout; posts which ones joined the checks
    every rank   if all did, runs the joint checks with the others; posts the findings
    rank 0       reads the findings, makes the report, and posts the exit code

No process group is created before the joint checks, because the doctor is for ranks that cannot join one.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from samestep.base.units import format_ranks
from samestep.doctor.report import Owned, Report
from samestep.doctor.results import Finding, RankResult, Result, ResultStore, grouped, note, problem
from samestep.ranks.rendezvous.handshake import shared_device

_GRACE_S = 10.0
_JOINT_S = 25.0  # how much later than another rank rank 0 can end the joint checks
# Ranks that differ in the first cannot, or must not, train together. Those that differ in the others
# sometimes can.
_MUST = ("samestep", "torch", "nccl")
_SHOULD = ("python", "numpy", "cuda", "driver")


def gather(
    store: ResultStore, own: RankResult, *, joint: Callable[[], Result] = Result, wait_s: float
) -> Report | None:
    """Send this rank's result to rank 0, and run the joint checks; all ranks call this.

    `joint` runs the joint checks within their time limits; `wait_s` is for the other ranks. The report is
    returned at rank 0, and None on the others.

    Raises:
        ConnectionError: rank 0 left.
        TimeoutError: rank 0 did not post which ranks joined the checks.
    """
    present = _present(store, own, time.monotonic() + wait_s)
    # The joint checks need all ranks, and would only wait for a missing one.
    result = joint() if len(present) == own.size else None
    if result is not None:
        store.post(f"found/{own.rank}", [asdict(one) for one in result.findings])
    return _report(store, present, result) if own.rank == 0 else None


def agree_on_exit_code(store: ResultStore, rank: int, report: Report | None) -> int:
    """Return the exit code of all ranks; rank 0 posts it, and waits until the others have read it."""
    deadline = time.monotonic() + _GRACE_S
    if report is None:
        decided = store.read("code", deadline=deadline + _JOINT_S)
        store.post(f"received/{rank}", "yes")
        return int(decided) if decided is not None else 1
    store.post("code", report.exit_code)
    for other in report.ranks[1:]:
        store.read(f"received/{other.rank}", deadline=deadline)
    return report.exit_code


def _present(store: ResultStore, own: RankResult, deadline: float) -> list[int]:
    """Return the ranks that joined the checks."""
    store.post(f"rank/{own.rank}", asdict(own))
    if own.rank == 0:
        posted = store.read_all("rank", range(own.size), deadline=deadline)
        store.post("present", [[rank for rank, result in posted.items() if result is not None], own.size])
    found = store.read("present", deadline=deadline + _GRACE_S)
    if found is None:
        raise TimeoutError("rank 0 did not post which ranks joined the checks")
    present, size = found
    if size != own.size or own.rank not in present:
        raise TimeoutError("rank 0 stopped waiting for this rank, or has another number of ranks")
    return list(present)


def _report(store: ResultStore, present: Sequence[int], result: Result | None) -> Report:
    """Return the report of all ranks from what they posted."""
    records = store.read_all("rank", present, deadline=0.0)
    ranks = [RankResult.from_record(one) for one in records.values()]
    found: dict[int, Any] = {}
    if result is not None:
        found = store.read_all("found", present, deadline=time.monotonic() + _GRACE_S)
    silent = [rank for rank, findings in found.items() if findings is None]
    return Report(
        ranks=ranks,
        rows=() if result is None else result.rows,
        findings=[
            *(((one.rank,), finding) for one in ranks for finding in one.findings),
            *(((rank,), Finding(**one)) for rank, findings in found.items() for one in findings or ()),
            *_about_all(ranks, silent),
        ],
    )


def _about_all(results: Sequence[RankResult], silent: Sequence[int]) -> Iterator[Owned]:
    size, present = results[0].size, {one.rank for one in results}
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
        if text := _differing({one.rank: one.facts.get("versions", {}).get(name) for one in every}):
            yield Finding(
                text=f"The ranks differ in their version of {name}: {text}. Start all of them from one "
                "environment.",
                hurts=name in _MUST,
            )
    for name, what in (("kind", "kind of device"), ("backend", "back end")):
        if text := _differing({one.rank: one.facts.get(name) for one in every}):
            yield problem(f"The ranks differ in their {what}: {text}. Compare their cards and variables.")
    if text := _differing({one.rank: one.facts.get("threads", {}).get("count") for one in every}):
        yield problem(
            f"The ranks compute with different numbers of threads: {text}. The slowest sets the pace, and "
            "the same bits need the same number: set OMP_NUM_THREADS, or give all ranks as many processors."
        )
    backend, uuids = every[0].facts.get("backend"), [str(one.facts.get("uuid") or "") for one in every]
    if backend and len(every) == every[0].size and (reason := shared_device(backend, uuids)):
        yield problem(f"{reason[0].upper()}{reason[1:]}")
    yield from _about_sizes(every)
    for host in sorted({one.host for one in every}):
        yield from _about_cpus([one for one in every if one.host == host], host)


def _about_sizes(every: Sequence[RankResult]) -> Iterator[Finding]:
    """Compare the launcher's layout with the hosts' names."""
    if text := _differing({one.rank: one.size for one in every}):
        yield problem(f"The ranks differ in the number of ranks: {text}. Start all of them in one job.")
    hosts = {one.host for one in every}
    node_counts = {one.facts.get("place", {}).get("nodes") for one in every}
    if len(every) == every[0].size and node_counts == {1} and len(hosts) > 1:
        yield note(
            f"The launcher reports one node for all ranks, but they are on {len(hosts)} hosts "
            f"({', '.join(sorted(hosts))}). Set LOCAL_RANK, LOCAL_WORLD_SIZE, NODE_RANK and NNODES, unless "
            "the hosts are containers of one node."
        )


def _about_cpus(here: Sequence[RankResult], host: str) -> Iterator[Finding]:
    """Yield a finding if ranks of a host compute with more threads than they have processors."""
    if any(one.facts.get("kind", "cpu") != "cpu" for one in here):
        return
    groups: list[tuple[set[int], list[RankResult]]] = []  # ranks whose masks overlap, with their CPUs
    for one in here:
        mask, members = set(one.facts.get("cpus", ())), [one]
        for other in [group for group in groups if group[0] & mask]:
            mask |= other[0]
            members = other[1] + members
            groups.remove(other)
        groups.append((mask, members))
    for mask, members in groups:
        threads = sum(int(one.facts.get("threads", {}).get("count", 1)) for one in members)
        count = len(mask)
        if all(set(one.facts.get("cpus", ())) == mask for one in members):
            # A quota or a scheduler can allow fewer than one mask has.
            usable = [one.facts.get("processors", {}).get("usable", count) for one in members]
            count = min(count, max(usable))
        if count and len(members) > 1 and threads > count:
            yield problem(
                f"On {host}, {format_ranks([one.rank for one in members])} compute with {threads} threads on "
                f"{count} CPU(s): they wait for each other. Request more from the scheduler (srun "
                "--cpus-per-task), let the launcher bind each rank to its own CPUs, or set a lower "
                "OMP_NUM_THREADS."
            )


def _differing(values: Mapping[int, Any]) -> str:
    """Return which ranks have which value; an empty text if all have the same."""
    groups = grouped(values)
    listed = ", ".join(f"{value or 'none'} on {format_ranks(ranks)}" for value, ranks in groups.items())
    return listed if len(groups) > 1 else ""
