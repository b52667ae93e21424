"""Replaces the store that torch creates in ``init_process_group``, for programs that this process runs.

torch's store accepts connections on every interface and answers any process. Ranks that `samestep run` has
started all have the job's secret, and all create a `NetworkStore` instead.
"""

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from importlib import import_module
from typing import Any

import torch.distributed as dist
from torch.distributed import DistNetworkError, PrefixStore, Store  # type: ignore[attr-defined]

from samestep.base import env
from samestep.base.errors import UsageError, WorldError
from samestep.base.place import Place
from samestep.hooks import declarations
from samestep.hooks.registry import attach, put, wrapping
from samestep.launchers.detect import detect
from samestep.ranks.rendezvous.network_store import NetworkStore, base_of
from samestep.ranks.rendezvous.store import ranks_store
from samestep.ranks.world.process_group import let_groups_end
from samestep.ranks.world.protected_groups import protect_groups, protect_objects

Handler = Callable[..., Iterator[tuple[Any, int, int]]]
group_sizes: set[int] = set()
"""The sizes of the default groups that this process's program has created from a URL."""


@dataclass(frozen=True, slots=True)
class JobEndpoint:
    """Host and port by which all ranks of a job connect, whatever address the program sets.

    If it is checked, a default group in which a process has another place than in the job is refused.
    """

    host: str
    port: int
    is_checked: bool


def prepare_groups(endpoint: JobEndpoint | None = None) -> None:
    """Prepare this process for a program that creates process groups itself; see `protect_rendezvous`."""
    protect_rendezvous(endpoint)
    keep_groups_of_reducers()
    let_groups_end()


def protect_rendezvous(endpoint: JobEndpoint | None = None) -> None:
    """Make ``env://`` and ``tcp://`` create a store that only this job's ranks can use.

    A store of torchrun's agents is not replaced.
    """
    if env.snapshot().get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return
    torchs: Any = import_module("torch.distributed.rendezvous")  # a function of the package hides its name
    put(declarations.ENV_STORE, partial(_created, endpoint))
    handlers: dict[str, Handler] = torchs._rendezvous_handlers  # noqa: SLF001
    for scheme in ("env", "tcp"):
        handlers[scheme] = _kept_for_group(handlers[scheme])
    protect_groups()
    protect_objects(env.snapshot())


def _created(
    endpoint: JobEndpoint | None,
    hostname: str,
    port: int,
    rank: int,
    world_size: int | None,
    timeout: timedelta,
    use_libuv: bool = True,  # noqa: ARG001, FBT001, FBT002
) -> PrefixStore:
    """Return the store that rank 0 serves; see torch's `_create_c10d_store`."""
    environment = env.snapshot()
    place = detect(environment).place
    claims = dist.group.WORLD is None and endpoint is None and place.size > 1
    if claims:
        _check_size(place, world_size)
    elif dist.group.WORLD is None and endpoint is not None and endpoint.is_checked:
        _check_place(place, rank, world_size)
    claims &= world_size == place.size
    if endpoint is not None and world_size == place.size:
        hostname, port = endpoint.host, endpoint.port
    try:
        store = ranks_store(
            environment,
            hostname,
            port,
            serves=(place.rank if claims else rank) == 0,  # two processes may claim rank 0, or none
            one_host=place.local_size == place.size,
            connect_s=timeout.total_seconds(),
        )
    except WorldError as error:
        raise DistNetworkError(str(error)) from error
    store.set_timeout(timeout)
    if world_size == place.size:
        store.keep_server()
    named = _numbered(store, place.rank if claims else rank, world_size)
    if claims:
        _check_claim(named, place, rank)
    return named


def _numbered(store: NetworkStore, rank: int, size: int | None) -> PrefixStore:
    """Return the store for the keys of the next group of this size: a server may last longer than a group."""
    number = store.add(f"samestep/groups/{size}/{rank}", 1)
    return PrefixStore(f"samestep/group/{size}/{number}", store)


def _check_place(place: Place, rank: int, world_size: int | None) -> None:
    """Refuse another place than this worker's, which the script computes from its flags."""
    if (rank, world_size) == (place.rank, place.size):
        return
    if place.nodes == 1:
        raise UsageError(
            f"the script creates a group of {world_size} ranks as rank {rank} in the process that it has "
            f"started as number {place.rank} of {place.size}. Give as many workers as it starts (-n), and "
            "the number by a flag of the script ({n}) if it has one."
        )
    raise UsageError(
        f"the script creates a group of {world_size} ranks as rank {rank}, and this is rank {place.rank} of "
        f"{place.size} = {place.nodes} nodes x {place.local_size}. Give its flags for nodes and workers: "
        "--nodes {nodes} --node_rank {node_rank} --gpus {local}."
    )


def _check_size(place: Place, world_size: int | None) -> None:
    """Refuse a number of ranks that this job does not have.

    A smaller group may be one of several, or of some ranks only.
    """
    if world_size is not None and world_size > place.size:
        raise UsageError(
            f"rank {place.rank} called init_process_group(world_size={world_size}), but the launcher started "
            f"WORLD_SIZE={place.size} processes: the group would wait for more for ever. Remove the "
            "argument, or start as many workers (-n)."
        )


def _check_claim(store: Store, place: Place, rank: int) -> None:
    """Refuse another rank than the launcher's if a further process claims it too.

    A permutation of the launcher's ranks is accepted. Only a process that claims another rank than its own
    waits for the claims of all.
    """
    keys = [f"samestep/claimed-rank/{peer}" for peer in range(place.size)]
    store.set(keys[place.rank], str(rank))
    if rank == place.rank:
        return
    claimed = [int(store.get(key)) for key in keys]
    if claimed.count(rank) > 1:
        claimants = [peer for peer, claim in enumerate(claimed) if claim == rank and peer != place.rank]
        raise UsageError(
            f"rank {place.rank} called init_process_group(rank={rank}), which rank "
            f"{', '.join(map(str, claimants))} does too; the launcher gave it RANK={place.rank}. "
            "Remove the argument, or take the rank from the environment variable RANK."
        )


def _kept_for_group(handler: Handler) -> Handler:
    """Return a handler whose store exists as long as the process group that is created with it.

    torch drops the handler's iterator when the group is created.
    """

    def handle(url: str, **options: Any) -> Iterator[tuple[Any, int, int]]:
        had_group = dist.group.WORLD is not None
        rendezvous = next(handler(url, **options))
        store = base_of(rendezvous[0])
        group_sizes.add(rendezvous[2])
        try:
            yield rendezvous
        finally:
            group = dist.group.WORLD
            if store is not None and group is not None and not had_group:
                store.keep_for(group)

    return handle


def keep_groups_of_reducers() -> None:
    """Make each `DistributedDataParallel` created from now on keep its group beyond its reducer.

    A group's destructor waits for the group's thread, which needs the interpreter lock to free the tensors
    of its last collective. A reducer that owns the last reference runs that destructor with the lock held,
    and the process hangs: under torch 2.13, a script that destroys the group before it drops its model hung
    in 8 of 100 runs on a busy machine. A reference from Python, dropped after the reducer's, releases the
    lock first.
    """
    attach(declarations.NEW_REDUCER, wrapping(_keep_group))


def _keep_group(original: Callable[..., None], model: Any, *args: Any, **kwargs: Any) -> None:
    original(model, *args, **kwargs)
    for owner in (model.reducer, model.logger):  # the logger owns the reducer too
        weakref.finalize(owner, _drop, model.process_group).atexit = False


def _drop(group: Any) -> None:
    """Drop the reference to a group with the end of this call."""
