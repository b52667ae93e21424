"""Compares the facts that the ranks reported, and yields a finding for each conflict."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from samestep.ranks.world.device import shared_device
from samestep.studies.doctor.check_result import Finding
from samestep.studies.doctor.rank_results import Examination
from samestep.studies.doctor.text import ranks_text

# Ranks that differ in the first cannot, or must not, train together. Those that differ in the others
# sometimes can.
_MUST = ("samestep", "torch", "nccl")
_SHOULD = ("python", "numpy", "cuda", "driver")


def across(every: Sequence[Examination]) -> Iterator[Finding]:
    """Yield a finding for each difference between the ranks.

    Args:
        every: the examinations of the ranks that joined the checks.
    """
    for name in (*_MUST, *_SHOULD):
        values = {one.rank: one.facts.get("versions", {}).get(name) for one in every}
        if text := _differing(values):
            yield Finding(
                text=f"The ranks differ in their version of {name}: {text}. Start all of them from one "
                "environment.",
                hurts=name in _MUST,
            )
    for name, what in (("kind", "kind of device"), ("backend", "back end")):
        if text := _differing({one.rank: one.facts.get(name) for one in every}):
            yield Finding(
                text=f"The ranks differ in their {what}: {text}. Compare their cards and variables."
            )
    if text := _differing({one.rank: one.facts.get("threads", {}).get("count") for one in every}):
        yield Finding(
            text=f"The ranks compute with different numbers of threads: {text}. The slowest sets the pace, "
            "and the same bits need the same number: set OMP_NUM_THREADS, or give all ranks as "
            "many processors."
        )
    backend, uuids = every[0].facts.get("backend"), [str(one.facts.get("uuid") or "") for one in every]
    if backend and len(every) == every[0].size and (reason := shared_device(backend, uuids)):
        yield Finding(text=f"{reason[0].upper()}{reason[1:]}")
    yield from _sizes(every)
    for host in sorted({one.host for one in every}):
        yield from _crowded([one for one in every if one.host == host], host)


def _sizes(every: Sequence[Examination]) -> Iterator[Finding]:
    """Compare the launcher's layout with the hosts' names."""
    if text := _differing({one.rank: one.size for one in every}):
        yield Finding(text=f"The ranks differ in the number of ranks: {text}. Start all of them in one job.")
    hosts = {one.host for one in every}
    node_counts = {one.facts.get("place", {}).get("nodes") for one in every}
    if len(every) == every[0].size and node_counts == {1} and len(hosts) > 1:
        yield Finding(
            text=f"The launcher reports one node for all ranks, but they are on {len(hosts)} hosts "
            f"({', '.join(sorted(hosts))}). Set LOCAL_RANK, LOCAL_WORLD_SIZE, NODE_RANK and NNODES, unless "
            "the hosts are containers of one node.",
            hurts=False,
        )


def _crowded(here: Sequence[Examination], host: str) -> Iterator[Finding]:
    """Yield a finding if ranks of a host compute with more threads than they have processors."""
    if len(here) < 2 or any(one.facts.get("kind", "cpu") != "cpu" for one in here):
        return
    groups: list[tuple[set[int], list[Examination]]] = []
    for one in here:
        mask, members = set(one.facts.get("cpus", ())), [one]
        for other in [group for group in groups if group[0] & mask]:
            mask |= other[0]
            members = other[1] + members
            groups.remove(other)
        groups.append((mask, members))
    for mask, members in groups:
        threads = sum(_threads(one.facts) for one in members)
        there = _capacity(mask, members)
        if there and len(members) > 1 and threads > there:
            ranks = ranks_text([one.rank for one in members])
            yield Finding(
                text=f"On {host}, {ranks} compute with {threads} threads on {there} CPU(s): they wait "
                "for each other. Request more from the scheduler (srun --cpus-per-task), let the launcher "
                "bind each rank to its own CPUs, or set a lower OMP_NUM_THREADS."
            )


def _capacity(mask: Collection[int], members: Sequence[Examination]) -> int:
    """Return the processors that ranks share; a quota or a scheduler can allow fewer than one mask has."""
    usable = [one.facts.get("processors", {}).get("usable", len(mask)) for one in members]
    one_mask = all(set(one.facts.get("cpus", ())) == set(mask) for one in members)
    return min(len(mask), max(usable)) if one_mask else len(mask)


def _threads(facts: Mapping[str, Any]) -> int:
    count = facts.get("threads", {}).get("count", 1)
    return int(count)


def _differing(values: Mapping[int, Any]) -> str:
    """Return which ranks have which value; an empty text if all have the same."""
    groups: dict[Any, list[int]] = {}
    for rank, value in values.items():
        groups.setdefault(value, []).append(rank)
    if len(groups) < 2:
        return ""
    return ", ".join(f"{value or 'none'} on {ranks_text(ranks)}" for value, ranks in groups.items())
