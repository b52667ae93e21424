"""What would happen if this process joined now, and what would hurt: worked out without joining.

Everything comes in as facts, so that any launcher's situation can be examined from its recording.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from samestep.base.env import Environment
from samestep.base.errors import UsageError
from samestep.base.machine import CpuShare, Machine
from samestep.doctor.part import Finding
from samestep.world import rendezvous
from samestep.world.compute_threads import Threads, guess_sharing, threads_per_rank
from samestep.world.detect import Detected, detect
from samestep.world.device import Choice, DeviceFacts, choose_backend, choose_device
from samestep.world.gloo_interface import IFNAME
from samestep.world.launchers import OPEN_MPI, TORCHELASTIC


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What was found here and what follows from it; None where nothing does.

    Args:
        detected: who started this process, as which of how many.
        machine: what it runs on.
        threads: what it would compute with.
        choice: the device it would use.
        backend: what would carry its messages.
        master: where the ranks would meet.
        findings: what to know about it.
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
    address_of: Callable[[str], str] = rendezvous.resolve,
    detected_by: Callable[[Environment], Detected] = detect,
) -> Diagnosis:
    """Return what would happen if the process with this environment joined.

    Args:
        env: its environment.
        machine: what it runs on.
        facts: the devices it sees; None where nobody looked.
        available: whether torch has a back end.
        address_of: returns the IP address of a host, or raises a DetectionError.
        detected_by: says who started the process.

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
    master = rendezvous.choose(detected)
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
            "threads will wait for each other. Unset it, or ask the scheduler for more."
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
    """Gloo by itself listens at the address that this host's name has: of no use to others if loopback."""
    if backend != "gloo" or detected.place.nodes == 1 or env.get(IFNAME):
        return
    try:
        address = address_of(machine.hostname)
    except UsageError:
        address = "no address"
    if address.startswith("127.") or address in {"::1", "no address"}:
        yield Finding(
            text=f"This host's name, {machine.hostname}, has {address}, which other nodes cannot reach. "
            "samestep has Gloo use the interface towards rank 0 instead; a program that is started without "
            f"it needs {IFNAME} (see `ip addr`).",
            hurts=False,
        )
