"""Checks the network interface that carries the messages between nodes."""

from collections.abc import Sequence
from dataclasses import asdict

from samestep.base.machine.interfaces import Interface
from samestep.studies.doctor.check_result import Finding, Part

# Another interface is reported if it is at least so many times as fast.
_MUCH_FASTER = 4


def judge(among: Sequence[Interface], used: Interface | None, why: str, *, nodes: int) -> Part:
    """Return the rows, findings and facts of the interfaces.

    Args:
        among: all interfaces of this host.
        used: the one that carries the messages between nodes.
        why: reason why it is that one.
        nodes: number of nodes of the job.
    """
    others = [one.describe() for one in among if one != used and not one.loopback]
    rows = [("interface", "none with an address" if used is None else f"{used.describe()} ({why})")]
    if others:
        rows += [("others" if i == 0 else "", text) for i, text in enumerate(others)]
    findings = [] if nodes == 1 else list(_between_nodes(among, used))
    return Part(
        rows=tuple(rows),
        findings=tuple(findings),
        facts={"interfaces": [asdict(one) for one in among], "interface": used and used.name},
    )


def _between_nodes(among: Sequence[Interface], used: Interface | None) -> list[Finding]:
    if used is None:
        return [
            Finding(
                text="No network interface but loopback is up and has an IP address: the other nodes cannot "
                "be reached. See `ip addr`."
            )
        ]
    if not used.up:
        return [
            Finding(
                text=f"{used.name}, which carries the messages to the other nodes, is down. See `ip addr`."
            )
        ]
    faster = [
        one
        for one in among
        if one.up and one.addresses and used.mbits and (one.mbits or 0) >= _MUCH_FASTER * used.mbits
    ]
    return [
        Finding(
            text=f"Messages between the nodes use {used.name} ({used.mbits / 1000:g} Gbit/s), though "
            f"{one.name} ({one.mbits / 1000:g} Gbit/s) is up and has an address. If the nodes reach each "
            f"other by it, set GLOO_SOCKET_IFNAME={one.name} and NCCL_SOCKET_IFNAME={one.name}."
        )
        for one in faster[:1]
        if used.mbits and one.mbits
    ]
