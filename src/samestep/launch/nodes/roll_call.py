"""Checks that every node of a job has started with a unique number, before any worker starts."""

import json
from threading import Event
from typing import Protocol

from samestep.base.errors import PeerLost, UsageError
from samestep.base.polling import polls

_CLASH = "roll/clash"
_GRACE_S = 1.0


class Store(Protocol):
    """Part of torch's stores that this module uses."""

    def add(self, key: str, amount: int) -> int:
        """Add to a number and return the sum."""

    def set(self, key: str, value: str) -> None:
        """Post a value."""

    def get(self, key: str) -> bytes:
        """Return a value, once it is posted."""

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys are posted."""


def roll_call(store: Store, node: int, nodes: int, *, host: str, timeout_s: float) -> None:
    """Return once each of `nodes` launchers has posted its number, and no two have posted the same.

    Args:
        store: store that node 0 serves.
        node: number of this node.
        nodes: number of nodes.
        host: host name of this node.
        timeout_s: maximum seconds to wait for another node.

    Raises:
        UsageError: two nodes have one number, or different numbers of nodes; all of them raise.
        PeerLost: a node did not arrive.
    """
    try:
        if store.add(f"roll/{node}/taken", 1) > 1:
            first, _ = json.loads(store.get(f"roll/{node}"))
            _refuse(
                store,
                f"two launchers were started as node {node} of {nodes}, on {first} and on {host}. Give "
                f"each a different --node-rank, 0 .. {nodes - 1}.",
            )
        store.set(f"roll/{node}", json.dumps([host, nodes]))
        for other in range(nodes):
            _await(store, other, nodes, timeout_s)
            there, count = json.loads(store.get(f"roll/{other}"))
            if count != nodes:
                _refuse(
                    store,
                    f"node {node} on {host} was started with --nnodes {nodes}, node {other} on {there} with "
                    f"--nnodes {count}. Give all the same number.",
                )
    except UsageError:
        if node == 0:
            Event().wait(_GRACE_S)  # the store ends with this node, and the others must read the reason
        raise


def _refuse(store: Store, why: str) -> None:
    store.set(_CLASH, why)
    raise UsageError(why)


def _await(store: Store, other: int, nodes: int, timeout_s: float) -> None:
    for _ in polls(timeout_s, most_s=0.25):
        if store.check([f"roll/{other}"]):
            return
        if store.check([_CLASH]):
            raise UsageError(store.get(_CLASH).decode())
    raise PeerLost(f"node {other} of {nodes} did not come within {timeout_s:g} s. Was it started?")
