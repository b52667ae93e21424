"""Measures the links between ranks pair by pair, and compares them with each other and with usual figures."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from samestep.base.units import seconds_text
from samestep.studies.doctor.check_result import Finding
from samestep.studies.doctor.pair_measurement import Door, Link, call
from samestep.studies.doctor.pair_schedule import Pair, before, measured, rounds

_BUDGET_S = 6.0
_SHORTEST_S, _LONGEST_S = 0.02, 0.15
_CALL_S = 3.0
_NO_TIME = "no time was left"
# Bytes per second between nodes, below which communication usually takes longer than computing.
_SLOW, _VERY_SLOW = 0.3e9, 0.06e9
_FRACTION = 0.3
_SKEW_S, _WRONG_CLOCK_S = 1.0, 60.0


class Board(Protocol):
    """A key-value store that all ranks share."""

    def post(self, key: str, value: str) -> None:
        """Store a value under a key."""

    def read(self, key: str, *, deadline: float) -> str | None:
        """Return the value once it is stored; None if it is not by `deadline` (of `time.monotonic`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Address of a rank's server, and the token that a client must prove to have."""

    host: str
    ip: str
    port: int
    token: str


def measure(
    board: Board, addresses: Sequence[Address | None], door: Door, *, rank: int, deadline: float
) -> list[Link]:
    """Measure the links of this rank, and return those in which it is the lower one; all ranks call this.

    Args:
        board: the store of the ranks.
        addresses: address of each rank, in rank order; None for a missing rank.
        door: the server of this rank.
        rank: this rank.
        deadline: end of the measurements, as an instant of `time.monotonic`.
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
    assert other is not None  # missing ranks are in no pair
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
    """Yield the findings about the links.

    Args:
        links: the measured links.
        hosts: host name of each rank.
        backend: back end of the job's communication.
    """
    late = [link for link in links if link.error == _NO_TIME]
    if late:
        text = f"{len(late)} of {len(links)} pairs of ranks were not measured: the time limit was over."
        yield Finding(text=text, hurts=False)
    broken = [link for link in links if link.error and link.error != _NO_TIME]
    if broken:
        named = "; ".join(f"{_ends(link, hosts)} at {link.error}" for link in broken[:4])
        more = f"; and {len(broken) - 4} more" if len(broken) > 4 else ""
        yield Finding(
            text=f"{len(broken)} of {len(links)} pairs of ranks cannot reach each other: {named}{more}. "
            "Check the network interface (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME), and whether a firewall "
            "between the nodes closes its ports."
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


def _clocks(across: Sequence[Link], hosts: Mapping[int, str]) -> Iterator[Finding]:
    apart = [link for link in across if abs(link.ahead_s) > _SKEW_S + link.latency_s]
    if not apart:
        return
    worst = max(apart, key=lambda link: abs(link.ahead_s))
    direction = "ahead of" if worst.ahead_s > 0 else "behind"
    yield Finding(
        text=f"The clock of {hosts[worst.b]} is {seconds_text(abs(worst.ahead_s))} {direction} that of "
        f"{hosts[worst.a]}: times in logs and files cannot be compared, and Slurm refuses messages "
        "with wrong times. Run chrony or NTP on the nodes.",
        hurts=abs(worst.ahead_s) > _WRONG_CLOCK_S,
    )


def table(links: Sequence[Link]) -> list[str]:
    """Return the figures as two tables: latencies, and bandwidths from the row's rank to the column's."""
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
