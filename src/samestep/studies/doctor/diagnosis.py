"""Predicts how this process would join, and the problems that it would have, without joining.

All facts are arguments, so that the situation under any launcher can be examined from its recording.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from samestep.base.env import Environment
from samestep.base.errors import UsageError
from samestep.base.machine.description import CpuShare, Machine
from samestep.launchers.compute_threads import Threads, guess_sharing, threads_per_rank
from samestep.launchers.detect import Detected, detect
from samestep.launchers.registry import OPEN_MPI, TORCHELASTIC
from samestep.ranks.rendezvous import endpoint
from samestep.ranks.rendezvous.gloo_interface import IFNAME
from samestep.ranks.world.device import Choice, DeviceFacts, choose_backend, choose_device
from samestep.studies.doctor.check_result import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Facts about this process, and the choices that follow from them; None if it needs no such choice.

    Args:
        detected: the launcher, and the place of this process in the job.
        machine: its machine.
        threads: its compute threads.
        choice: the device that it would use.
        backend: the back end of its communication.
        master: address and port of the rendezvous.
        findings: problems and notes.
    """

    detected: Detected
    machine: Machine
    threads: Threads
    choice: Choice | None
    backend: str | None
    master: tuple[str, int] | None
    findings: tuple[Finding, ...]


def diagnose(
    env: Environment,
    machine: Machine,
    *,
    facts: DeviceFacts | None,
    available: Callable[[str], bool],
    address_of: Callable[[str], str] = endpoint.resolve,
    detected_by: Callable[[Environment], Detected] = detect,
) -> Diagnosis:
    """Return how the process with this environment would join.

    Args:
        env: its environment.
        machine: its machine.
        facts: the devices that it sees; None if they were not detected.
        available: returns whether torch has a back end.
        address_of: returns the IP address of a host, or raises a DetectionError.
        detected_by: returns the launcher and the place of the process.

    Raises:
        DetectionError: the launcher's variables contradict each other.
    """
    detected = detected_by(env)
    findings = [Finding(text=note, hurts=detected.place.size == 1) for note in detected.notes]
    master, choice, backend = None, None, None
    try:
        master = _master(detected, address_of)
    except UsageError as error:
        findings.append(Finding(text=str(error)))
    try:
        if facts is not None:
            choice = choose_device(facts, detected.place)
            backend = _backend(detected, choice, available)
    except UsageError as error:
        findings.append(Finding(text=str(error)))
    threads = threads_per_rank(
        env,
        machine.cpu,
        local_size=detected.place.local_size,
        sharing=guess_sharing(env, machine.cpu, local_size=detected.place.local_size),
        launcher=detected.launcher,
    )
    on_cpu = choice is not None and choice.kind == "cpu"
    findings += _about_threads(env, detected, machine.cpu, threads, on_cpu=on_cpu)
    findings += _about_network(env, detected, machine, backend, address_of)
    return Diagnosis(
        detected=detected,
        machine=machine,
        threads=threads,
        choice=choice,
        backend=backend,
        master=master,
        findings=tuple(findings),
    )


def _master(detected: Detected, address_of: Callable[[str], str]) -> tuple[str, int] | None:
    if detected.place.size == 1:
        return None
    master = endpoint.choose(detected)
    address_of(master[0])
    return master


def _backend(detected: Detected, choice: Choice, available: Callable[[str], bool]) -> str | None:
    if detected.place.size == 1:
        return None
    return choose_backend(choice.kind, asked=None, available=available)


def _about_threads(
    env: Environment, detected: Detected, cpu: CpuShare, threads: Threads, *, on_cpu: bool
) -> Iterator[Finding]:
    local_size = detected.place.local_size
    idle = cpu.usable // local_size - threads.count
    if on_cpu and idle > 0 and threads.count == 1 and detected.launcher == TORCHELASTIC.name:
        yield Finding(
            text=f"Each rank computes with 1 thread ({threads.reason}), though there are {cpu.usable} usable "
            f"cores for {local_size} rank(s). Set OMP_NUM_THREADS={cpu.usable // local_size}."
        )
    if env.get("OMP_NUM_THREADS") and threads.count > cpu.usable:
        yield Finding(
            text=f"{threads.reason}, but this process may use {cpu.usable} core(s) ({cpu.limited_by}): the "
            "threads will wait for each other. Unset it, or request more from the scheduler."
        )
    if detected.launcher == OPEN_MPI.name and len(cpu.allowed) == 1 < cpu.machine // local_size:
        yield Finding(
            text=f"Open MPI bound this rank to CPU {cpu.allowed[0]} of {cpu.machine}. Add --bind-to none to "
            "mpirun, so that data loading and computing have more than one."
        )


def _about_network(
    env: Environment,
    detected: Detected,
    machine: Machine,
    backend: str | None,
    address_of: Callable[[str], str],
) -> Iterator[Finding]:
    """Yield a note if other nodes cannot reach the address of this host's name, at which Gloo listens."""
    if backend != "gloo" or detected.place.nodes == 1 or env.get(IFNAME):
        return
    try:
        address = address_of(machine.hostname)
    except UsageError:
        address = "no address"
    if address.startswith("127.") or address in {"::1", "no address"}:
        yield Finding(
            text=f"This host's name, {machine.hostname}, has {address}, which other nodes cannot reach. "
            "samestep makes Gloo use the interface towards rank 0 instead; a program that is started without "
            f"samestep needs {IFNAME} (see `ip addr`).",
            hurts=False,
        )
