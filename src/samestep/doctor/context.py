"""Predicts how this process joins, without joining: the input of all checks. Defines their results.

All facts are arguments, so that the situation under any launcher can be examined from its recording.
"""

import json
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from samestep.base.env import Environment
from samestep.base.errors import UsageError
from samestep.base.machine.description import Machine
from samestep.base.place import Place
from samestep.base.polling import holds_within
from samestep.launchers.detect import Detected
from samestep.launchers.processors import Threads, guess_sharing, threads_per_rank
from samestep.launchers.registry import OPEN_MPI, TORCHELASTIC
from samestep.ranks.rendezvous import endpoint
from samestep.ranks.rendezvous.gloo_interface import IFNAME
from samestep.ranks.world.device import Choice, DeviceFacts, choose_backend, choose_device

if TYPE_CHECKING:
    from samestep.ranks.rendezvous.store import Store  # it loads torch, which may be what is broken

H = TypeVar("H", bound=Hashable)
Row: TypeAlias = tuple[str, str]
"""A name and a value; a row with an empty name continues the previous row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Problem or note for the user."""

    text: str  # description, and what to do
    hurts: bool = True  # whether it makes a run fail, compute something wrong, or slow


def problem(text: str) -> Finding:
    """Return a finding that makes a run fail, compute something wrong, or slow."""
    return Finding(text=text)


def note(text: str) -> Finding:
    """Return a finding that is only information."""
    return Finding(text=text, hurts=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Result of one check."""

    rows: Sequence[Row] = ()  # for readers, in the order in which they are printed
    findings: Sequence[Finding] = ()  # problems and notes
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON data, which the ranks compare


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult(Result):
    """Results of all checks of one rank."""

    rank: int  # number of the rank
    size: int  # number of ranks of the job, according to its launcher
    host: str  # the name of its host
    summary: str  # the line that sums up launcher, device, back end and threads

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "RankResult":
        """Return the result from the JSON data of `dataclasses.asdict`."""
        rows = [(name, value) for name, value in record["rows"]]
        findings = [Finding(**fields) for fields in record["findings"]]
        return cls(**{**record, "rows": rows, "findings": findings})


def joined(results: Iterable[Result]) -> Result:
    """Return several results as one, in their order."""
    every = list(results)
    return Result(
        rows=[row for result in every for row in result.rows],
        findings=[finding for result in every for finding in result.findings],
        facts={name: fact for result in every for name, fact in result.facts.items()},
    )


def rows(name: str, values: Iterable[str]) -> list[Row]:
    """Return a row for each value, of which only the first one has the name."""
    return [(name if i == 0 else "", value) for i, value in enumerate(values)]


def grouped(values: Mapping[int, H]) -> dict[H, list[int]]:
    """Return the ranks of each value."""
    ranks: dict[H, list[int]] = {}
    for rank, value in values.items():
        ranks.setdefault(value, []).append(rank)
    return ranks


def matrix(
    corner: str, numbers: Sequence[int], cells: Mapping[tuple[int, int], str], *, width: int = 8
) -> list[str]:
    """Return the lines of a table of pairs of `numbers`, from row to column; ``?`` is an unknown cell."""
    lines = [f"{corner:<6}" + "".join(f"{number:>{width}}" for number in numbers)]
    for a in numbers:
        row = ["-" if a == b else cells.get((a, b), "?") for b in numbers]
        lines.append(f"{a:>6}" + "".join(f"{cell:>{width}}" for cell in row))
    return lines


class ResultStore:
    """JSON data by key that all ranks can read, in torch's key-value store; it ends when rank 0 exits."""

    def __init__(self, store: "Store") -> None:
        self._store = store

    def post(self, key: str, value: object) -> None:
        """Store JSON data under a key.

        Raises:
            ConnectionError: rank 0 left.
        """
        try:
            self._store.set(f"doctor/{key}", json.dumps(value))
        except RuntimeError as error:  # torch raises it if the store is gone
            raise ConnectionError(f"rank 0 left: {error}") from error

    def read(self, key: str, *, deadline: float) -> Any:
        """Return the value once it is stored; None if it is not by `deadline` (of `time.monotonic`).

        Raises:
            ConnectionError: rank 0 left.
        """
        name, left = f"doctor/{key}", deadline - time.monotonic()
        try:
            if not holds_within(lambda: self._store.check([name]), left, least_s=0.001, most_s=0.1):
                return None
            return json.loads(self._store.get(name))
        except RuntimeError as error:
            raise ConnectionError(f"rank 0 left: {error}") from error

    def read_all(self, key: str, ranks: Iterable[int], *, deadline: float) -> dict[int, Any]:
        """Return what each rank has posted under `key`; None for a rank that has not by `deadline`."""
        return {rank: self.read(f"{key}/{rank}", deadline=deadline) for rank in ranks}


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
