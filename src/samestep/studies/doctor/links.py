"""Measures the links between ranks pair by pair, and compares them with each other and with usual figures.

Each pair is measured once, and no host is in two pairs at a time::

    ranks 0 1 | 2 3, two on each of two hosts:      ranks on hosts of their own:

    round 0   0-1   2-3                             0-1   2-3
    round 1   0-2                                   0-2   1-3
    round 2   0-3                                   0-3   1-2
    round 3   1-2
    round 4   1-3
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

from samestep.base.units import seconds_text
from samestep.studies.doctor.pair_measurement import Link, LinkServer, measure_pair
from samestep.studies.doctor.results import Finding, ResultStore, matrix, note, problem

Pair: TypeAlias = tuple[int, int]
"""Two ranks, the lower one first."""

MOST_RANKS = 8
"""Up to this number of ranks, every pair is measured; beyond it, only pairs of one rank of each host."""

_BUDGET_S = 6.0
_SHORTEST_S, _LONGEST_S = 0.02, 0.15
_CALL_S = 3.0
_NO_TIME = "no time was left"
# Bytes per second between nodes, below which communication usually takes longer than computing.
_SLOW, _VERY_SLOW = 0.3e9, 0.06e9
_FRACTION = 0.3
_SKEW_S, _WRONG_CLOCK_S = 1.0, 60.0
_NAMED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Address of a rank's server, and the token that a client must prove to have."""

    host: str
    ip: str
    port: int
    token: str


def measuring_ranks(hosts: Sequence[str]) -> list[int]:
    """Return the ranks that measure; the host of a missing rank is empty."""
    present = [rank for rank, host in enumerate(hosts) if host]
    if len(present) <= MOST_RANKS:
        return present
    firsts = {hosts[rank]: rank for rank in reversed(present)}
    return sorted(firsts.values())


def rounds(hosts: Sequence[str], ranks: Sequence[int]) -> list[list[Pair]]:
    """Return all pairs of `ranks` in rounds, so that no host is in two pairs of a round."""
    left = [(a, b) for i, a in enumerate(ranks) for b in ranks[i + 1 :]]
    made = []
    while left:
        busy: set[str] = set()
        pairs: list[Pair] = []
        for a, b in left:
            if not {hosts[a], hosts[b]} & busy:
                busy |= {hosts[a], hosts[b]}
                pairs.append((a, b))
        taken = set(pairs)
        left = [pair for pair in left if pair not in taken]
        made.append(pairs)
    return made


def predecessors(pair: Pair, every: Sequence[Sequence[Pair]], hosts: Sequence[str]) -> list[Pair]:
    """Return the pairs of the last earlier round of each host of `pair`, which must end before it."""
    number = next(i for i, pairs in enumerate(every) if pair in pairs)
    needed = set()
    for host in {hosts[rank] for rank in pair}:
        earlier = (
            [one for one in pairs if host in (hosts[one[0]], hosts[one[1]])] for pairs in every[:number]
        )
        needed.update(next(filter(None, reversed(list(earlier))), []))
    return sorted(needed)


def measure(
    store: ResultStore, addresses: Sequence[Address | None], server: LinkServer, *, rank: int, deadline: float
) -> list[Link]:
    """Measure the links of this rank, and return those in which it is the lower one; all ranks call this.

    The address of a missing rank is None; the measurements end at `deadline` (of `time.monotonic`).
    """
    hosts = ["" if one is None else one.host for one in addresses]
    every = rounds(hosts, measuring_ranks(hosts))
    window_s = min(_LONGEST_S, max(_SHORTEST_S, _BUDGET_S / (2 * max(1, len(every)))))
    found = []
    for pair in (pair for pairs in every for pair in pairs if rank in pair):
        for earlier in predecessors(pair, every, hosts):
            store.read(f"measured/{earlier}", deadline=min(deadline, time.monotonic() + 2 * _CALL_S))
        if time.monotonic() > deadline:
            link = Link(a=pair[0], b=pair[1], error=_NO_TIME)
        else:
            link = _measure_one(pair, addresses, server, rank=rank, window_s=window_s)
        if rank == pair[0]:
            found.append(link)
            store.post(f"measured/{pair}", "done")
    return found


def _measure_one(
    pair: Pair, addresses: Sequence[Address | None], server: LinkServer, *, rank: int, window_s: float
) -> Link:
    a, b = pair
    other = addresses[b]
    assert other is not None  # missing ranks are in no pair
    try:
        if rank == b:
            server.answer(a, limit_s=_CALL_S)
            return Link(a=a, b=b)
        at, token = (other.ip, other.port), bytes.fromhex(other.token)
        return measure_pair(a, b, at=at, token=token, window_s=window_s, limit_s=_CALL_S)
    except OSError as error:
        reason = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
        return Link(a=a, b=b, error=f"{other.ip}:{other.port}: {reason}")


def judge(links: Sequence[Link], hosts: Mapping[int, str], *, backend: str | None) -> Iterator[Finding]:
    """Yield the findings about the measured links, from the host name of each rank."""
    late = [link for link in links if link.error == _NO_TIME]
    if late:
        yield note(f"{len(late)} of {len(links)} pairs of ranks were not measured: the time limit was over.")
    broken = [f"{_ends(link, hosts)} at {link.error}" for link in links if link.error and link not in late]
    if broken:
        more = f"; and {len(broken) - _NAMED} more" if len(broken) > _NAMED else ""
        yield problem(
            f"{len(broken)} of {len(links)} pairs of ranks cannot reach each other: "
            f"{'; '.join(broken[:_NAMED])}{more}. Check the network interface (GLOO_SOCKET_IFNAME, "
            "NCCL_SOCKET_IFNAME), and whether a firewall between the nodes closes its ports."
        )
    across = [link for link in links if not link.error and hosts[link.a] != hosts[link.b]]
    if across:
        yield from _about_speed(across, hosts, backend)
        yield from _about_clocks(across, hosts)


def _about_speed(across: Sequence[Link], hosts: Mapping[int, str], backend: str | None) -> Iterator[Finding]:
    usual = median(_worse(link) for link in across)
    odd = [link for link in across if _worse(link) < _FRACTION * usual]
    if odd and len(across) > 2:
        named = "; ".join(f"{_ends(link, hosts)} {_speed(_worse(link))}" for link in odd[:_NAMED])
        yield problem(
            f"Some links between nodes are much slower than the others ({_speed(usual)}): "
            f"{named}. Every step waits for the slowest. Exclude the node, or check its cable and the "
            "speed of its interface (`ethtool`)."
        )
    if usual < _SLOW:
        fast = " NCCL can use a faster transport than TCP." if backend == "nccl" else ""
        yield Finding(
            text=f"The nodes communicate at {_speed(usual)} ({usual * 8e-9:.2g} Gbit/s) over TCP: the "
            f"gradients of 25 M parameters take {seconds_text(2 * 1e8 / usual)} a step.{fast} Check the "
            "interface; larger batches, --accumulate and --compress reduce communication.",
            hurts=usual < _VERY_SLOW and backend != "nccl",
        )


def _about_clocks(across: Sequence[Link], hosts: Mapping[int, str]) -> Iterator[Finding]:
    worst = max(across, key=lambda link: abs(link.ahead_s) - link.latency_s)
    apart = abs(worst.ahead_s)
    if apart > _SKEW_S + worst.latency_s:
        yield Finding(
            text=f"The clock of {hosts[worst.b]} is {seconds_text(apart)} "
            f"{'ahead of' if worst.ahead_s > 0 else 'behind'} that of {hosts[worst.a]}: times in logs and "
            "files cannot be compared, and Slurm refuses messages with wrong times. Run chrony or NTP on the "
            "nodes.",
            hurts=apart > _WRONG_CLOCK_S,
        )


def table(links: Sequence[Link]) -> list[str]:
    """Return the figures as two tables: latencies, and bandwidths from the row's rank to the column's."""
    ranks = sorted({rank for link in links for rank in (link.a, link.b)})
    latency, speed = {}, {}
    for link in links:
        if not link.error:
            latency[link.a, link.b] = latency[link.b, link.a] = f"{link.latency_s * 1e6:.3g}"
            speed[link.a, link.b] = f"{link.there / 1e9:.3g}"
            speed[link.b, link.a] = f"{link.back / 1e9:.3g}"
    return [
        "latency in us, over TCP",
        *matrix("  rank", ranks, latency),
        "",
        "GB/s over TCP, one connection, from row to column",
        *matrix("  rank", ranks, speed),
    ]


def _speed(per_second: float) -> str:
    return f"{per_second / 1e9:.2g} GB/s"


def _worse(link: Link) -> float:
    return min(link.there, link.back)


def _ends(link: Link, hosts: Mapping[int, str]) -> str:
    return f"rank {link.a} ({hosts[link.a]}) to rank {link.b} ({hosts[link.b]})"
