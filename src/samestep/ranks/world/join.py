"""Joins the other ranks of this job."""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from socket import gethostname
from types import TracebackType
from typing import NoReturn

import torch
import torch.distributed as dist

from samestep import __version__
from samestep.base import env
from samestep.base.env import Environment
from samestep.base.errors import Error, PeerLost, WorldError
from samestep.base.machine.c_libraries import settle_math_kernels
from samestep.base.machine.description import CpuShare, cpu_share
from samestep.base.place import Place
from samestep.launchers.detect import Detected, from_arguments
from samestep.launchers.detect_task import detect_task
from samestep.launchers.processors import (
    Threads,
    passed_threads,
    threads_per_rank,
    undo_default_binding,
    without_default_threads,
)
from samestep.launchers.registry import SAMESTEP
from samestep.ranks.rendezvous.endpoint import choose
from samestep.ranks.rendezvous.gloo_interface import loopback_only, use_interface_to
from samestep.ranks.rendezvous.handshake import PeerInfo, Slot, rendezvous, withdraw
from samestep.ranks.rendezvous.store import Store, base_of, open_store
from samestep.ranks.world.banner import describe, describe_rest
from samestep.ranks.world.device import (
    Choice,
    available_here,
    backend_name,
    bind,
    choose_backend,
    choose_device,
    facts_here,
)
from samestep.ranks.world.process_group import ProcessGroupWorld, adopt, entered, let_groups_end
from samestep.ranks.world.protected_groups import protect_groups, protect_objects
from samestep.ranks.world.protocol import SoloWorld, World

# Versions that must be equal on all ranks.
_VERSIONS = {"samestep": __version__, "torch": torch.__version__}

_START_S = 600.0
"""Seconds that ranks wait for each other at the start, in which some may still import torch: a guess."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """Arguments of `join`; `start_s` limits the wait for the others in joining."""

    backend: str | None = None
    device: str | None
    threads: int | None = None
    timeout_s: float
    start_s: float
    place: Place | None = None
    master: tuple[str, int] | None = None
    cpu_tensors: bool


class _Joining(AbstractContextManager[World]):
    """Context manager of a job to join: ``with`` enters the job and returns the World."""

    def __init__(self, options: _Options) -> None:
        self._context = _joining(options)

    def __enter__(self) -> World:
        return self._context.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._context.__exit__(kind, error, trace)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"join() has no .{name} before it is entered. Put the training inside "
            "`with samestep.join() as world:`, which also leaves the job at the end."
        )


def join(
    *,
    backend: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    timeout_s: float = _START_S,
    place: Place | None = None,
    master: tuple[str, int] | None = None,
    cpu_tensors: bool = False,
) -> AbstractContextManager[World]:
    """Join the other ranks of this job for the duration of a block.

    The launcher is detected from its variables; device and threads are bound before the ranks
    connect. A process that no launcher started as one of several gets a world of one, without any process
    group. If a process group exists already, it is used, and not destroyed at the end.

    Args:
        backend: ``nccl``, ``gloo``, ``xccl`` or ``mpi``, instead of the default of the device.
        device: ``cpu``, ``cuda``, ``xpu``, or one of several, such as ``cuda:1``.
        threads: threads to compute with on each rank.
        timeout_s: seconds that a rank waits for the others, in joining and in every collective.
        place: place of this rank, instead of the detected one.
        master: host and port of rank 0, instead of the launcher's.
        cpu_tensors: whether tensors of the CPU are communicated as well as those of an accelerator.

    Returns:
        a context manager that yields the world of this rank; its tensors go on ``world.device``.

    Raises:
        UsageError: the variables, the device or the back end do not allow it; all ranks raise.
        PeerLost: a rank did not arrive within `timeout_s`.

    Example:
        >>> with join(device="cpu") as world:
        ...     world.place.describe()
        'rank 0 of 1 (local rank 0 of 1 on node 0 of 1)'
    """
    return _Joining(
        _Options(
            backend=backend,
            device=device,
            threads=threads,
            timeout_s=timeout_s,
            start_s=timeout_s,
            place=place,
            master=master,
            cpu_tensors=cpu_tensors,
        )
    )


def join_team(*, device: str | None, timeout_s: float) -> AbstractContextManager[World]:
    """Join the other ranks for a script that one of them runs; see `join`.

    They communicate tensors of the CPU, too, and may start later than `timeout_s`, a limit of calls.
    """
    return _Joining(
        _Options(device=device, timeout_s=timeout_s, start_s=max(timeout_s, _START_S), cpu_tensors=True)
    )


@contextmanager
def _joining(options: _Options) -> Iterator[World]:
    world = adopt() if dist.is_available() and dist.is_initialized() else _joined(options, env.snapshot())
    try:
        with entered(world):
            yield world
    except BaseException:
        with suppress(Exception):  # the first error is the one to report
            world.close()
        raise
    world.close()


def _joined(options: _Options, environment: Environment) -> World:
    place = options.place
    detected = detect_task(environment) if place is None else from_arguments(place, environment)
    undo_default_binding(environment, detected.launcher)
    task = _Task(options, environment, detected)
    if detected.place.size == 1:
        return task.alone()
    store = open_store(environment, detected, master=options.master, timeout_s=options.start_s)
    network_store = base_of(store)  # None for the store of torchrun's agents
    try:
        world = task.connected(store)
    except BaseException:
        if network_store is not None:
            network_store.close()
        raise
    if network_store is not None:
        network_store.keep_for(dist.group.WORLD)
        network_store.keep_server()
    return world


@dataclass(frozen=True, slots=True)
class _Task:
    """This process of a job: the options, the variables, and what is detected from them."""

    options: _Options
    environment: Environment
    detected: Detected

    def alone(self) -> World:
        """Return the world of a process without others."""
        choice = self._device()
        threads = self.bound(choice, cpu_share(), sharing=1)
        if self.detected.notes:
            self.announce(choice, threads, backend=None, interface="")
        return SoloWorld(device=choice.device, place=self.detected.place)

    def connected(self, store: Store) -> World:
        """Return the world of this rank, once all ranks fit together."""
        cpu = cpu_share()
        choice, backend, slot = self._slot_of(store, cpu)
        # The handshake has settled the assumed fields.
        settled = replace(self, detected=replace(self.detected, place=slot.place, notes=()))
        threads = settled.bound(choice, cpu, slot.sharing)
        settled.announce(choice, threads, backend=backend, interface=settled.interface(backend))
        device = torch.device(choice.device)
        if base_of(store) is not None:
            protect_groups()
            protect_objects(self.environment)
        let_groups_end()
        try:
            dist.init_process_group(
                backend_name(choice.kind, backend, cpu_tensors=self.options.cpu_tensors),
                store=store,
                rank=slot.place.rank,
                world_size=slot.place.size,
                timeout=timedelta(seconds=self.options.timeout_s),
                device_id=device if backend == "nccl" else None,
            )
        except RuntimeError as error:
            raise _not_connected(slot.place, error) from error
        return ProcessGroupWorld(slot.place, device)

    def _device(self) -> Choice:
        asked = self.options.device
        return choose_device(facts_here(asked), self.detected.place, asked=asked)

    def _slot_of(self, store: Store, cpu: CpuShare) -> tuple[Choice, str, Slot]:
        """Choose device and back end, and post them, or the error that keeps this rank from joining."""
        info = PeerInfo(
            place=self.detected.place,
            assumed=self.detected.assumed,
            host=gethostname(),
            cpus=cpu.allowed,
            versions=_VERSIONS,
        )
        try:
            choice = self._device()
            backend = choose_backend(choice.kind, asked=self.options.backend, available=available_here)
        except Error as error:
            withdraw(store, info, error)
            raise
        info = replace(info, kind=choice.kind, uuid=choice.uuid, backend=backend)
        return choice, backend, rendezvous(store, info, timeout_s=self.options.start_s)

    def bound(self, choice: Choice, cpu: CpuShare, sharing: int) -> Threads:
        """Bind this process to its device and its threads, and return these."""
        launcher = self.detected.launcher
        threads = threads_per_rank(
            without_default_threads(self.environment, launcher),
            cpu,
            local_size=self.detected.place.local_size,
            sharing=sharing,
            launcher=launcher,
            asked=self.options.threads,
        )
        bind(choice.device)
        if torch.get_num_threads() != threads.count:
            torch.set_num_threads(threads.count)
        settle_math_kernels()
        return threads

    def interface(self, backend: str) -> str:
        """Make Gloo use the interface towards rank 0; return its name, empty if Gloo is not the back end."""
        if self.detected.place.nodes == 1:
            env.export(loopback_only(self.environment))
            return ""
        address, _ = choose(self.detected, master=self.options.master)
        name = use_interface_to(address).name
        return name if backend == "gloo" else ""

    def announce(self, choice: Choice, threads: Threads, *, backend: str | None, interface: str) -> None:
        """Print the banner on stderr, once, on rank 0; `SAMESTEP_BANNER=0` suppresses it."""
        detected = self.detected
        if not detected.place.is_main or self.environment.get("SAMESTEP_BANNER") == "0":
            return
        if detected.launcher == SAMESTEP.name and backend is not None:  # which has printed the rest
            unprinted = None if threads == passed_threads(self.environment) else threads
            line = describe_rest(device=choice.kind, backend=backend, threads=unprinted, interface=interface)
        else:
            line = describe(
                detected, device=choice.kind, backend=backend, threads=threads, interface=interface
            )
        sys.stderr.write("".join(f"samestep: {text}\n" for text in (line, *detected.notes)))


def _not_connected(place: Place, error: RuntimeError) -> WorldError:
    """Return the error of a rank without a process group; without the store, another rank has the cause."""
    kind = PeerLost if isinstance(error, dist.DistNetworkError) else WorldError
    return kind(f"{place.describe()} could not connect to the others: {error}")
