"""Opens the key-value store of a job, through which its ranks find each other.

torchrun's agents on several nodes serve one store for all starts of their workers, and each agent counts
restarts separately. A rank that reads the keys of a dead one would join a world that is gone. So the ranks
agree on a name of their restart generation: each rank except 0 posts a random word, and only a live rank 0
answers it::

    rank r    hello/r = WORD          rank 0    answer/WORD = NAME
    rank r    received/NAME/r         rank 0    continues once all ranks have posted this
"""

import errno
import socket
from datetime import timedelta
from functools import partial
from itertools import count
from socket import gethostname
from uuid import uuid4

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # public by its docs

from samestep.base.env import Environment
from samestep.base.errors import PeerLost, WorldError
from samestep.base.place import Place
from samestep.base.polling import holds_within, polls
from samestep.launchers.detect import LOOPBACK, Detected
from samestep.ranks.rendezvous.endpoint import START_S, no_answer, rendezvous_endpoint, resolve
from samestep.ranks.rendezvous.job_secret import job_key
from samestep.ranks.rendezvous.network_store import (
    LEAST_PAUSE_S,
    MOST_PAUSE_S,
    NetworkStore,
    base_of,
    seconds_of_try,
    serve,
)

__all__ = ["PURPOSE", "Store", "base_of", "open_store", "ranks_store"]
PURPOSE = "store"
"""Purpose of the key that protects the ranks' store."""

# Every join of this process gets separate keys, since a store may outlive the world it served.
_joins = count()


def open_store(
    environment: Environment, detected: Detected, *, master: tuple[str, int] | None, timeout_s: float
) -> Store:
    """Return a store that all ranks reach, with separate keys for this join.

    `master` replaces the detected address of the rendezvous. Waiting for a key takes at most `timeout_s`.

    Under torchrun the agent serves the store, which is torch's and requires no secret; otherwise rank 0
    serves it, and answers only ranks that prove to belong to the job.

    Raises:
        UsageError: the address of rank 0 is unknown or does not resolve, or there is no secret.
        WorldError: the port is in use.
        PeerLost: rank 0 did not answer.
    """
    connect_s = min(timeout_s, START_S)
    with rendezvous_endpoint(detected, master=master, timeout_s=connect_s) as (address, port):
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
    join = next(_joins)
    # Agents' stores outlive a restart of their workers. Each agent counts restarts separately, so that only
    # ranks of one agent have the same number.
    if detected.place.nodes == 1:
        generation = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    elif agents:
        names = PrefixStore(f"samestep/generations/{join}", store)
        generation = generation_name(names, detected.place, timeout_s=timeout_s)
    else:
        generation = "0"
    return PrefixStore(f"samestep/{generation}/{join}", store)


def ranks_store(
    environment: Environment, address: str, port: int, *, serves: bool, one_host: bool, connect_s: float
) -> NetworkStore:
    """Return the store at an address, which rank 0 serves to the ranks of this job only.

    `connect_s` limits the wait for rank 0. If all ranks share a host, it is served there only.

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


def _agents_store(address: str, port: int, *, size: int, connect_s: float) -> Store:
    """Return the store that torchrun's agent serves."""
    _await_listener(address, port, timeout_s=connect_s)
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


def generation_name(store: Store, place: Place, *, timeout_s: float) -> str:
    """Return a name that is the same on all live ranks, and that no earlier restart generation has used.

    Raises:
        PeerLost: a rank did not arrive, or the store is gone.
    """
    try:
        return _answer_all(store, place, timeout_s) if place.is_main else _ask_rank_0(store, place, timeout_s)
    except RuntimeError as error:  # torch raises it if the store is gone
        raise PeerLost(f"the agents' store was lost during the rendezvous ({error}).") from error


def _answer_all(store: Store, place: Place, timeout_s: float) -> str:
    """Answer every word, as rank 0, until all ranks have confirmed the answer to their own."""
    name, answered = uuid4().hex, set[bytes]()
    missing = list(range(1, place.size))
    for _ in polls(timeout_s, least_s=LEAST_PAUSE_S, most_s=MOST_PAUSE_S):
        for rank in missing:
            if store.check([f"hello/{rank}"]) and (word := store.get(f"hello/{rank}")) not in answered:
                store.set(f"answer/{word.decode()}", name)
                answered.add(word)
        missing = [rank for rank in missing if not store.check([f"received/{name}/{rank}"])]
        if not missing:
            return name
    raise PeerLost(
        f"rank {missing[0]} of {place.size} did not come within {timeout_s:g} s. Did it start, and "
        "does it reach the agents' store?"
    )


def _ask_rank_0(store: Store, place: Place, timeout_s: float) -> str:
    word = uuid4().hex
    store.set(f"hello/{place.rank}", word)
    if not holds_within(
        lambda: store.check([f"answer/{word}"]), timeout_s, least_s=LEAST_PAUSE_S, most_s=MOST_PAUSE_S
    ):
        raise PeerLost(f"rank 0 of {place.size} did not come within {timeout_s:g} s. Did it start?")
    name = store.get(f"answer/{word}").decode()
    store.set(f"received/{name}/{place.rank}", "")
    return name


def _await_listener(address: str, port: int, *, timeout_s: float) -> None:
    """Return once a server accepts connections at `address`:`port`; rank 0 may still be starting."""
    failure = OSError("no answer")
    for waited in polls(timeout_s):
        try:
            with socket.create_connection((address, port), timeout=seconds_of_try(timeout_s - waited)):
                return
        except OSError as error:  # noqa: PERF203 - each try is one connection
            failure = error
    raise no_answer(f"at {address}:{port}", timeout_s, failure) from failure


def _not_served(error: OSError, address: str, port: int) -> WorldError:
    if error.errno == errno.EADDRINUSE:
        return WorldError(
            f"port {port} is taken on {gethostname()}, the host of rank 0. Set MASTER_PORT to a free one."
        )
    return WorldError(
        f"rank 0 cannot serve at {address}:{port} ({error.strerror}). Is MASTER_ADDR the host of rank 0, "
        f"which is {gethostname()}?"
    )
