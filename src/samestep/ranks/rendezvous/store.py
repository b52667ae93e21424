"""Opens the key-value store of a job, through which its ranks find each other."""

import errno
from datetime import timedelta
from functools import partial
from itertools import count
from socket import gethostname

import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # public by its docs

from samestep.base.env import Environment
from samestep.base.errors import PeerLost, WorldError
from samestep.launchers.detect import LOOPBACK, Detected
from samestep.ranks.rendezvous.endpoint import await_listener, resolve
from samestep.ranks.rendezvous.free_port import START_S, meeting_point
from samestep.ranks.rendezvous.job_secret import job_key
from samestep.ranks.rendezvous.network_store import NetworkStore, base_of, serve
from samestep.ranks.rendezvous.restart_generation import name_of_life

__all__ = ["PURPOSE", "Store", "close_unused", "is_protected", "keep_for_group", "open_store", "ranks_store"]

PURPOSE = "store"
"""Purpose of the key that protects the ranks' store."""

# Every join of this process gets separate keys, since a store may outlive the world it served.
_joinings = count()


def open_store(
    environment: Environment, detected: Detected, *, master: tuple[str, int] | None, timeout_s: float
) -> Store:
    """Return a store that all ranks reach, with separate keys for this join.

    Under torchrun the agent serves the store, which is torch's and requires no secret; otherwise rank 0
    serves it, and answers only ranks that prove to belong to the job.

    Args:
        environment: variables of this process.
        detected: this rank's place, and the rendezvous.
        master: address and port of the rendezvous, instead of the detected one.
        timeout_s: maximum seconds to wait for a key.

    Raises:
        UsageError: the address of rank 0 is unknown or does not resolve, or there is no secret.
        WorldError: the port is in use.
        PeerLost: rank 0 did not answer.
    """
    connect_s = min(timeout_s, START_S)
    with meeting_point(detected, master=master, timeout_s=connect_s) as (address, port):
        agents = (
            environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and (address, port) == detected.master
        )
        if agents:
            store = _agents_store(address, port, size=detected.place.size, connect_s=connect_s)
        else:
            place = detected.place
            store = ranks_store(
                environment,
                address,
                port,
                serves=place.is_main,
                one_host=place.local_size == place.size,
                connect_s=connect_s,
            )
    store.set_timeout(timedelta(seconds=timeout_s))
    joining = next(_joinings)
    # Agents' stores outlive a restart of their workers. Each agent counts restarts separately, so that only
    # ranks of one agent have the same number.
    if detected.place.nodes == 1:
        life = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    elif agents:
        meeting = PrefixStore(f"samestep/meeting/{joining}", store)
        life = name_of_life(meeting, detected.place, timeout_s=timeout_s)
    else:
        life = "0"
    return PrefixStore(f"samestep/{life}/{joining}", store)


def ranks_store(
    environment: Environment, address: str, port: int, *, serves: bool, one_host: bool, connect_s: float
) -> NetworkStore:
    """Return the store at an address, which rank 0 serves to the ranks of this job only.

    Args:
        environment: variables of this process.
        address: address of rank 0.
        port: port of rank 0.
        serves: whether this is rank 0.
        one_host: whether all ranks share a host.
        connect_s: maximum seconds to wait for rank 0.

    Raises:
        UsageError: there is no secret.
        WorldError: rank 0 cannot serve at the address.
        PeerLost: rank 0 does not answer.
    """
    key = job_key(environment, PURPOSE)
    if serves:
        ip = resolve(address)
        try:
            return serve(ip, port, key, everywhere=not (one_host or ip in LOOPBACK))
        except OSError as error:
            raise _not_served(error, address, port) from error
    store = NetworkStore(address, port, key)
    try:
        store.reach(connect_s)
    except BaseException:
        store.close()
        raise
    return store


def keep_for_group(store: Store) -> None:
    """Keep a `NetworkStore` open as long as the default process group exists."""
    base, group = base_of(store), dist.group.WORLD
    if base is not None and group is not None:
        base.keep_for(group)


def is_protected(store: Store) -> bool:
    """Return whether only this job's ranks can use a store."""
    return base_of(store) is not None


def close_unused(store: Store) -> None:
    """Close a `NetworkStore` that no process group uses."""
    base = base_of(store)
    if base is not None:
        base.close()


def _agents_store(address: str, port: int, *, size: int, connect_s: float) -> Store:
    """Return the store that torchrun's agent serves."""
    await_listener(address, port, timeout_s=connect_s)
    connect = partial(
        TCPStore,
        address,
        port,
        size,
        is_master=False,
        timeout=timedelta(seconds=connect_s),
        wait_for_workers=False,
        multi_tenant=True,
    )
    try:
        try:
            return connect()
        except RuntimeError as error:
            if "libuv" not in str(error):
                raise
            return connect(use_libuv=False)  # distributions build torch without it; the protocol is the same
    except RuntimeError as error:
        first_line = str(error).partition("\n")[0]
        raise PeerLost(f"the agent does not answer at {address}:{port} ({first_line}).") from error


def _not_served(error: OSError, address: str, port: int) -> WorldError:
    if error.errno == errno.EADDRINUSE:
        return WorldError(
            f"port {port} is taken on {gethostname()}, the host of rank 0. Set MASTER_PORT to a free one."
        )
    return WorldError(
        f"rank 0 cannot serve at {address}:{port} ({error.strerror}). Is MASTER_ADDR the host of rank 0, "
        f"which is {gethostname()}?"
    )
