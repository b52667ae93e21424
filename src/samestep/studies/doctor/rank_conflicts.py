"""Compares the facts that the ranks reported, and yields a finding for each conflict."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from samestep.base.units import format_ranks
from samestep.ranks.world.device import shared_device
from samestep.studies.doctor.results import Finding, RankResult, grouped, note, problem

# Ranks that differ in the first cannot, or must not, train together. Those that differ in the others
# sometimes can.
_MUST = ("samestep", "torch", "nccl")
_SHOULD = ("python", "numpy", "cuda", "driver")


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
