"""The key-value store through which the ranks of a job find each other."""

from datetime import timedelta
from functools import partial
from itertools import count
from socket import gethostname

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # public by its docs

from samestep.base.env import Environment
from samestep.base.errors import PeerLost, WorldError
from samestep.world.detect import Detected
from samestep.world.lives import name_of_life
from samestep.world.meeting import START_S, meeting_point
from samestep.world.rendezvous import await_listener

__all__ = ["Store", "open_store"]

# Every joining of this process gets keys of its own, since a store may outlive the world it served.
_joinings = count()


def open_store(
    environment: Environment, detected: Detected, *, master: tuple[str, int] | None, timeout_s: float
) -> Store:
    """Return a store that all ranks reach, with keys of its own for this joining.

    Under torchrun the agent serves the store; otherwise rank 0 does.

    Args:
        environment: of this process.
        detected: this rank's place, and where the ranks meet.
        master: where they meet instead.
        timeout_s: how long a key may be waited for.

    Raises:
        UsageError: the address of rank 0 is unknown or does not resolve.
        WorldError: the port is taken.
        PeerLost: rank 0 did not answer.
    """
    connect_s = min(timeout_s, START_S)
    with meeting_point(detected, master=master, timeout_s=connect_s) as (address, port):
        agents = (
            environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and (address, port) == detected.master
        )
        store = _connected(
            address,
            port,
            size=detected.place.size,
            serves=detected.place.is_main and not agents,
            connect_s=connect_s,
        )
    store.set_timeout(timedelta(seconds=timeout_s))
    joining = next(_joinings)
    # Agents' stores outlive a restart of their workers. They count restarts each for itself, so that only
    # ranks of one agent agree on the number.
    if detected.place.nodes == 1:
        life = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    elif agents:
        meeting = PrefixStore(f"samestep/meeting/{joining}", store)
        life = name_of_life(meeting, detected.place, timeout_s=timeout_s)
    else:
        life = "0"
    return PrefixStore(f"samestep/{life}/{joining}", store)


def _connected(address: str, port: int, *, size: int, serves: bool, connect_s: float) -> Store:
    """Return the store at an address, served from here or by another."""
    if not serves:
        await_listener(address, port, timeout_s=connect_s)
    connect = partial(
        TCPStore,
        address,
        port,
        size,
        is_master=serves,
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
        raise _no_store(error, address, port, serves=serves) from error


def _no_store(error: RuntimeError, address: str, port: int, *, serves: bool) -> WorldError:
    first_line = str(error).partition("\n")[0]
    if serves and "EADDRINUSE" in first_line:
        return WorldError(
            f"port {port} is taken on {gethostname()}, the host of rank 0. Set MASTER_PORT to a free one."
        )
    if serves:
        return WorldError(
            f"rank 0 cannot serve at {address}:{port} ({first_line}). Is MASTER_ADDR the host of rank 0, "
            f"which is {gethostname()}?"
        )
    return PeerLost(f"rank 0 does not answer at {address}:{port} ({first_line}).")
