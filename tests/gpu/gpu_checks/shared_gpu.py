"""Lets two ranks use one GPU over NCCL, in the processes of the checks only: samestep refuses it to users.

NCCL refuses two ranks on one device if both have the same host. Each process gets another name of its host,
and NCCL then connects the ranks by sockets. That is slow, and its results are right.
"""

import os

from samestep.base import env
from samestep.ranks.rendezvous import handshake

VARIABLES = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_IB_DISABLE": "1",
    "NCCL_SOCKET_IFNAME": "lo",
}
"""Variables with which NCCL connects ranks by sockets of this host."""
HOST = "NCCL_HOSTID"


def allow() -> None:
    """Let the processes that are forked from this one, such as the workers of a run, share a GPU."""
    env.export(VARIABLES)
    handshake._ONE_RANK_PER_DEVICE = frozenset()
    os.register_at_fork(after_in_child=_name_host)


def _name_host() -> None:
    env.export({HOST: f"process-{os.getpid()}"})
