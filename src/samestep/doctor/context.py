"""Predicts how this process joins, without joining: the input of all checks.

All facts are arguments, so that the situation under any launcher can be examined from its recording.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from samestep.base.env import Environment
from samestep.base.errors import UsageError
from samestep.base.machine.description import Machine
from samestep.base.place import Place
from samestep.doctor.results import Finding, ResultStore, note, problem
from samestep.launchers.detect import Detected
from samestep.launchers.processors import Threads, guess_sharing, threads_per_rank
from samestep.launchers.registry import OPEN_MPI, TORCHELASTIC
from samestep.ranks.rendezvous import endpoint
from samestep.ranks.rendezvous.gloo_interface import IFNAME
from samestep.ranks.world.device import Choice, DeviceFacts, choose_backend, choose_device


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Facts about this process, and the choices that follow from them; None if it needs no such choice."""

    environment: Environment  # its environment variables
    detected: Detected  # the launcher, and the place of this process in the job
    machine: Machine  # its machine
    threads: Threads  # its compute threads
    devices: DeviceFacts | None  # the accelerators that it sees; None if they were not detected
    choice: Choice | None = None  # the device that it would use
    backend: str | None = None  # the back end of its communication
    master: tuple[str, int] | None = None  # address and port of the rendezvous
    findings: Sequence[Finding] = ()  # problems and notes of the prediction
    run_folder: Path = Path("runs")  # the run folder
    root: Path = Path("/")  # the folder of /proc, /sys and /dev; tests have recordings of other machines
    store: ResultStore | None = None  # the store of the ranks; None until they are connected

    @property
    def place(self) -> Place:
        """The place of this process in the job."""
        return self.detected.place


def predict(
    env: Environment,
    detected: Detected,
    machine: Machine,
    *,
    devices: DeviceFacts | None,
    available: Callable[[str], bool],
    address_of: Callable[[str], str] = endpoint.resolve,
) -> Context:
    """Return how the process with this environment joins.

    `available` returns whether torch has a back end; `address_of` returns the IP address of a host, or raises
    a DetectionError.
    """
    place = detected.place
    findings = [Finding(text=text, hurts=place.size == 1) for text in detected.notes]
    master, choice, backend = None, None, None
    try:
        if place.size > 1:
            master = endpoint.choose(detected)
            address_of(master[0])
    except UsageError as error:
        master = None
        findings.append(problem(str(error)))
    try:
        if devices is not None:
            choice = choose_device(devices, place)
            if place.size > 1:
                backend = choose_backend(choice.kind, asked=None, available=available)
    except UsageError as error:
        findings.append(problem(str(error)))
    sharing = guess_sharing(env, machine.cpu, local_size=place.local_size)
    threads = threads_per_rank(
        env, machine.cpu, local_size=place.local_size, sharing=sharing, launcher=detected.launcher
    )
    context = Context(
        environment=env,
        detected=detected,
        machine=machine,
        threads=threads,
        devices=devices,
        choice=choice,
        backend=backend,
        master=master,
    )
    findings += [*_about_threads(context), *_about_host_name(context, address_of)]
    return replace(context, findings=findings)


def _about_threads(context: Context) -> Iterator[Finding]:
    env, cpu, threads = context.environment, context.machine.cpu, context.threads
    launcher, local_size = context.detected.launcher, context.place.local_size
    idle = cpu.usable // local_size - threads.count
    on_cpu = context.choice is not None and context.choice.kind == "cpu"
    if on_cpu and idle > 0 and threads.count == 1 and launcher == TORCHELASTIC.name:
        yield problem(
            f"Each rank computes with 1 thread ({threads.reason}), though there are {cpu.usable} usable "
            f"cores for {local_size} rank(s). Set OMP_NUM_THREADS={cpu.usable // local_size}."
        )
    if env.get("OMP_NUM_THREADS") and threads.count > cpu.usable:
        yield problem(
            f"{threads.reason}, but this process may use {cpu.usable} core(s) ({cpu.limited_by}): the "
            "threads will wait for each other. Unset it, or request more from the scheduler."
        )
    if launcher == OPEN_MPI.name and len(cpu.allowed) == 1 < cpu.machine // local_size:
        yield problem(
            f"Open MPI bound this rank to CPU {cpu.allowed[0]} of {cpu.machine}. Add --bind-to none to "
            "mpirun, so that data loading and computing have more than one."
        )


def _about_host_name(context: Context, address_of: Callable[[str], str]) -> Iterator[Finding]:
    """Yield a note if other nodes cannot reach the address of this host's name, at which Gloo listens."""
    if context.backend != "gloo" or context.place.nodes == 1 or context.environment.get(IFNAME):
        return
    name = context.machine.hostname
    try:
        address = address_of(name)
    except UsageError:
        address = "no address"
    if address.startswith("127.") or address in {"::1", "no address"}:
        yield note(
            f"This host's name, {name}, has {address}, which other nodes cannot reach. "
            "samestep makes Gloo use the interface towards rank 0 instead; a program that is started without "
            f"samestep needs {IFNAME} (see `ip addr`)."
        )
