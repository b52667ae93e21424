"""The links between ranks: measured pair by pair, then judged against each other and what is usual."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from samestep.base.units import seconds_text
from samestep.doctor.part import Finding
from samestep.doctor.rounds import Pair, before, measured, rounds
from samestep.doctor.wire import Door, Link, call

_BUDGET_S = 6.0
_SHORTEST_S, _LONGEST_S = 0.02, 0.15
_CALL_S = 3.0
_NO_TIME = "no time was left"
# Bytes per second between nodes below which an ordinary network is slower than its computing.
_SLOW, _VERY_SLOW = 0.3e9, 0.06e9
_FRACTION = 0.3
_SKEW_S, _WRONG_CLOCK_S = 1.0, 60.0


class Board(Protocol):
    """Where ranks leave each other words."""

    def post(self, key: str, value: str) -> None:
        """Leave a word."""

    def read(self, key: str, *, deadline: float) -> str | None:
        """Return a word once it is there; None if it is not by `deadline` (of `time.monotonic`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a rank can be called."""

    host: str
    ip: str
    port: int
    token: str


def measure(
    board: Board, addresses: Sequence[Address | None], door: Door, *, rank: int, deadline: float
) -> list[Link]:
    """Measure the links of this rank that it is the first of; all ranks call this.

    Args:
        board: where ranks leave each other words.
        addresses: of each rank, in rank order; None for one that is not there.
        door: where this one can be called.
        rank: this one.
        deadline: when to stop, as an instant of `time.monotonic`.
    """
    hosts = ["" if one is None else one.host for one in addresses]
    every = rounds(hosts, measured(hosts))
    window_s = min(_LONGEST_S, max(_SHORTEST_S, _BUDGET_S / (2 * max(1, len(every)))))
    found = []
    for pair in (pair for this in every for pair in this if rank in pair):
        for earlier in before(pair, every, hosts):
            board.read(_key(earlier), deadline=min(deadline, time.monotonic() + 2 * _CALL_S))
        if time.monotonic() > deadline:
            link = Link(a=pair[0], b=pair[1], error=_NO_TIME)
        else:
            link = _one(pair, addresses, door, rank=rank, window_s=window_s)
        if rank == pair[0]:
            found.append(link)
            board.post(_key(pair), "done")
    return found


def _one(pair: Pair, addresses: Sequence[Address | None], door: Door, *, rank: int, window_s: float) -> Link:
    a, b = pair
    other = addresses[b]
    assert other is not None  # only ranks that are there measure
    try:
        if rank == b:
            door.answer(a, limit_s=_CALL_S)
            return Link(a=a, b=b)
        token = bytes.fromhex(other.token)
        return call(a, b, at=(other.ip, other.port), token=token, window_s=window_s, limit_s=_CALL_S)
    except OSError as error:
        reason = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
        return Link(a=a, b=b, error=f"{other.ip}:{other.port}: {reason}")


def judge(links: Sequence[Link], hosts: Mapping[int, str], *, backend: str | None) -> Iterator[Finding]:
    """Yield what is worth telling of the links.

    Args:
        links: those measured.
        hosts: of the ranks.
        backend: what carries the job's messages.
    """
    late = [link for link in links if link.error == _NO_TIME]
    if late:
        text = f"{len(late)} of {len(links)} pairs of ranks were not measured: the others took all the time."
        yield Finding(text=text, hurts=False)
    broken = [link for link in links if link.error and link.error != _NO_TIME]
    if broken:
        named = "; ".join(f"{_ends(link, hosts)} at {link.error}" for link in broken[:4])
        more = f"; and {len(broken) - 4} more" if len(broken) > 4 else ""
        yield Finding(
            text=f"{len(broken)} of {len(links)} pairs of ranks cannot reach each other: {named}{more}. Is "
            "it the right network interface (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME), or does a firewall "
            "between the nodes close its ports?"
        )
    across = [link for link in links if not link.error and hosts[link.a] != hosts[link.b]]
    yield from _slow(across, hosts, backend)
    yield from _clocks(across, hosts)


def _slow(across: Sequence[Link], hosts: Mapping[int, str], backend: str | None) -> Iterator[Finding]:
    if not across:
        return
    usual = median(_worse(link) for link in across)
    odd = [link for link in across if _worse(link) < _FRACTION * usual]
    if odd and len(across) > 2:
        named = "; ".join(f"{_ends(link, hosts)} {_speed(_worse(link))}" for link in odd[:4])
        yield Finding(
            text=f"Some links between nodes are much slower than the others ({_speed(usual)}): "
            f"{named}. Every step waits for the slowest. Leave the node out, or see its cable and its "
            "interface's speed (`ethtool`)."
        )
    if usual < _SLOW:
        fast = " NCCL may use a faster one than TCP." if backend == "nccl" else ""
        yield Finding(
            text=f"The nodes exchange {_speed(usual)} ({usual * 8e-9:.2g} Gbit/s) over TCP: the "
            f"gradients of 25 M parameters take {seconds_text(2 * 1e8 / usual)} a step.{fast} Is it the "
            "right interface? Otherwise exchange less: larger batches, --accumulate, --compress.",
            hurts=usual < _VERY_SLOW and backend != "nccl",
        )


def _clocks(across: Sequence[Link], hosts: Mapping[int, str]) -> Iterator[Finding]:
    apart = [link for link in across if abs(link.ahead_s) > _SKEW_S + link.latency_s]
    if not apart:
        return
    worst = max(apart, key=lambda link: abs(link.ahead_s))
    direction = "ahead of" if worst.ahead_s > 0 else "behind"
    yield Finding(
        text=f"The clock of {hosts[worst.b]} is {seconds_text(abs(worst.ahead_s))} {direction} that of "
        f"{hosts[worst.a]}: times in logs and files do not compare, and Slurm refuses messages of wrong "
        "clocks. Have the nodes run chrony or NTP.",
        hurts=abs(worst.ahead_s) > _WRONG_CLOCK_S,
    )


def table(links: Sequence[Link]) -> list[str]:
    """Return the figures as two tables: latencies, and bandwidths of the row's rank to the column's."""
    ranks = sorted({rank for link in links for rank in (link.a, link.b)})
    good = [link for link in links if not link.error]
    latency = {(link.a, link.b): f"{link.latency_s * 1e6:.3g}" for link in good}
    latency |= {(b, a): text for (a, b), text in latency.items()}
    speed = {(link.a, link.b): f"{link.there / 1e9:.3g}" for link in good}
    speed |= {(link.b, link.a): f"{link.back / 1e9:.3g}" for link in good}
    return [
        *_matrix("latency in us, over TCP", ranks, latency),
        "",
        *_matrix("GB/s over TCP, one connection, from row to column", ranks, speed),
    ]


def _matrix(title: str, ranks: Sequence[int], cells: Mapping[Pair, str]) -> Iterator[str]:
    yield title
    yield "  rank" + "".join(f"{rank:>8}" for rank in ranks)
    for a in ranks:
        yield f"{a:>6}" + "".join(f"{'-' if a == b else cells.get((a, b), '?'):>8}" for b in ranks)


def _speed(per_second: float) -> str:
    return f"{per_second / 1e9:.2g} GB/s"


def _worse(link: Link) -> float:
    return min(link.there, link.back)


def _ends(link: Link, hosts: Mapping[int, str]) -> str:
    return f"rank {link.a} ({hosts[link.a]}) to rank {link.b} ({hosts[link.b]})"


def _key(pair: Pair) -> str:
    return f"measured/{pair[0]}-{pair[1]}"
