"""Lists all checks, and runs them on one rank: its own, then those with the other ranks, then the report."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from samestep.base import env
from samestep.base.env import Environment
from samestep.base.errors import Error
from samestep.base.machine.description import machine, package_version
from samestep.base.polling import with_timeout
from samestep.base.units import bytes_text, ranges, seconds_text
from samestep.doctor import gpus, limits, network, run_folder
from samestep.doctor.context import (
    Context,
    RankResult,
    Result,
    ResultStore,
    Row,
    joined,
    predict,
    problem,
    rows,
)
from samestep.doctor.report import Report, agree_on_exit_code, gather
from samestep.hooks.declarations import ALL
from samestep.hooks.registry import problems
from samestep.launchers.detect import detect
from samestep.launchers.detect_task import refuse_pods, with_main_host
from samestep.launchers.processors import undo_default_binding, without_default_threads
from samestep.ranks.world.banner import describe
from samestep.ranks.world.device import BACKENDS, DeviceFacts, available_here, facts_here, toolkit_versions

THREAD = "samestep-doctor"
"""The name of the thread that runs a check."""
_DEVICES_S = 60.0  # of the detection of devices; a driver can hang
_JOINING_TIMEOUT = (
    "Joining the other ranks, or the first sum over all, did not end within {limit:g} s. "
    "See the other findings; with NCCL, set NCCL_DEBUG=INFO and read the output of its ranks."
)
_VALUES = 2**18  # in the sum: 1 MiB of float32
_TIMES = 5  # of which the fastest is reported
_JOIN_S = 15.0  # less than the time limit of the check, so that its error names the reason


@dataclass(frozen=True, slots=True)
class Check:
    """One check."""

    subject: str  # for messages
    run: Callable[[Context], Result]  # the function
    timeout_s: float  # time limit in seconds
    joint: bool = False  # whether all ranks run it together, after the other checks
    needs_devices: bool = False  # whether ``--no-devices`` leaves it out
    on_timeout: str = "The check of {subject} failed: {error}. Something there hangs."


def run_check(check: Check, context: Context) -> Result:
    """Return the result of a check, or a finding if it failed or took too long."""
    try:
        return with_timeout(check.timeout_s, lambda: check.run(context), name=THREAD)
    except TimeoutError as error:
        text = check.on_timeout.format(subject=check.subject, limit=check.timeout_s, error=error)
    except Exception as error:  # noqa: BLE001 - the other checks run after any error
        text = f"The check of {check.subject} failed: {type(error).__name__}: {error}."
    return Result(findings=[problem(text)])


def any_stuck() -> bool:
    """Return whether a check still runs after its time limit; this process must not wait for it."""
    return any(thread.name == THREAD for thread in threading.enumerate())


def launcher(context: Context) -> Result:
    """Return the launcher of this process, its place in the job, and its device, back end and threads."""
    detected, machine, choice, threads = context.detected, context.machine, context.choice, context.threads
    cpu = machine.cpu
    evidence = [f"{name}={value}" for name, value in detected.evidence]
    shown: list[Row] = [
        ("place", detected.place.describe()),
        ("launcher", detected.launcher),
        *rows("because", evidence or ["no launcher's variables are set"]),
        *rows("outer", [", ".join(detected.outer)] if detected.outer else []),
        *rows("inferred", [", ".join(detected.assumed)] if detected.assumed else []),
        *rows("rendezvous", ["{}:{}".format(*context.master)] if context.master else []),
    ]
    if context.devices is not None and choice is not None:
        shown.append(("device", f"{choice.device} ({choice.reason})"))
        shown.append(("back end", _backend(context.backend, choice.kind)))
    shown += [
        ("threads", f"{threads.count} ({threads.reason})"),
        ("processors", f"{cpu.usable} usable of {cpu.machine} ({cpu.limited_by}); {machine.processor}"),
        ("may use", f"CPUs {ranges(cpu.allowed, separator=', ')}"),
        ("memory", bytes_text(machine.memory_bytes)),
        ("host", f"{machine.hostname}, {machine.system}"),
    ]
    facts = {
        "place": asdict(detected.place),
        "launcher": detected.launcher,
        "evidence": dict(detected.evidence),
        "master": context.master,
        "device": choice and choice.device,
        "kind": choice and choice.kind,
        "uuid": choice and choice.uuid,
        "backend": context.backend,
        "threads": {"count": threads.count, "reason": threads.reason},
        "cpus": list(cpu.allowed),
        "processors": {"usable": cpu.usable, "of": cpu.machine, "limited_by": cpu.limited_by},
        "memory_bytes": machine.memory_bytes,
        "host": machine.hostname,
    }
    return Result(rows=shown, findings=context.findings, facts=facts)


def versions(context: Context) -> Result:
    """Return the versions that ranks should share."""
    machine = context.machine
    packages = {
        "samestep": machine.samestep,
        "python": machine.python,
        "torch": machine.torch,
        "numpy": package_version("numpy"),
        **(toolkit_versions(context.devices.kind) if context.devices is not None else {}),
    }
    text = ", ".join(f"{name} {version}" for name, version in packages.items())
    return Result(rows=[("versions", text)], facts={"versions": packages})


def networks(context: Context) -> Result:
    """Check the network interfaces, InfiniBand, the settings that name them, and the rendezvous' port."""
    here = network.read(context)
    about_settings = network.variables(context.environment, here)
    return joined((network.interfaces(here), network.infiniband(here), about_settings, network.port(context)))


def hooks(_: Context) -> Result:
    """Check that the installed libraries have every attribute that samestep replaces."""
    try:
        import torch  # noqa: F401 - the others need it
    except ImportError:
        return Result(rows=[("libraries", "not checked, because torch cannot be imported")])
    wrong = [problem(f"{text}.") for text in problems(ALL)]
    fit = f"{len(ALL) - len(wrong)} of the {len(ALL)} functions that samestep replaces are as it expects"
    return Result(rows=[("libraries", fit)], findings=wrong)


def joining(_: Context) -> Result:
    """Join the other ranks as a training does, and sum numbers over all of them."""
    try:
        return _sum(time.perf_counter())
    except Error as error:
        reason = error.__cause__ or error  # its text has no rank, so that equal findings of ranks are merged
        text = f"The ranks cannot join each other as a training does: {_headline(reason)}"
    except RuntimeError as error:  # raised by torch in a collective
        text = f"The first sum over all ranks failed: {_headline(error)}"
    return Result(findings=[problem(text)])


def _headline(error: BaseException) -> str:
    """Return the first line of an error's text; its type if it has no text, as an `EOFError`."""
    return (str(error).strip() or repr(error)).splitlines()[0]


def _sum(begin: float) -> Result:
    import torch

    from samestep.ranks.world.join import join

    with env.exported({"SAMESTEP_BANNER": "0"}), join(timeout_s=_JOIN_S) as world:
        joined_s = time.perf_counter() - begin
        size = world.place.size
        best = float("inf")
        for _ in range(_TIMES):
            numbers = torch.full((_VALUES,), float(world.place.rank + 1), device=world.device)
            world.barrier()
            start = time.perf_counter()
            world.all_reduce(numbers)
            wrong = int((numbers != size * (size + 1) / 2).sum().item())
            best = min(best, time.perf_counter() - start)
    text = f"joined in {seconds_text(joined_s)}; a sum of 1 MiB over all takes {seconds_text(best)}"
    if not wrong:
        return Result(rows=[("together", f"{text}, and is right")])
    finding = f"A sum over all ranks is wrong in {wrong} of {_VALUES} places. Do not train here; report it."
    return Result(rows=[("together", text)], findings=[problem(finding)])


CHECKS: Sequence[Check] = (
    Check("the launcher", launcher, 5.0),
    Check("versions", versions, 20.0),
    Check("networks", networks, 15.0),
    Check("limits", limits.check, 5.0),
    Check("accelerators", gpus.check, 60.0),
    Check("hooks into libraries", hooks, 60.0, needs_devices=True),
    Check("the run folder", run_folder.check, 20.0),
    Check("the shared run folder", run_folder.check_shared, 25.0, joint=True),
    Check("joining", joining, 40.0, joint=True, needs_devices=True, on_timeout=_JOINING_TIMEOUT),
)


def _backend(backend: str | None, kind: str) -> str:
    """Return the row of the table of back ends that applies, and why."""
    if backend is None:
        return "none needed"
    rest = ", ".join(f"{carrier} for {carried}" for carried, carrier in BACKENDS.items() if carried != kind)
    return f"{backend} (which carries tensors of device {kind}; {rest})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of the command."""

    run_folder: Path = Path("runs")  # the run folder
    devices: bool = True  # whether to detect devices, and to join as a training does
    wait_s: float = 60.0  # seconds to wait for the other ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of the doctor on one rank."""

    report: Report | None  # of rank 0, or of a rank that could not reach the others
    store: ResultStore | None = None  # in which the ranks agree on the exit code
    rank: int = 0  # this rank
    unreached: bool = False  # whether the other ranks could not be reached

    def agree_on_exit_code(self) -> int:
        """Return the exit code; the same on all ranks that reached each other."""
        code = 0 if self.report is None else self.report.exit_code
        try:
            return code if self.store is None else agree_on_exit_code(self.store, self.rank, self.report)
        except ConnectionError:  # rank 0 has reported, and exited
            return code


def run_checks(environment: Environment, options: Options, checks: Sequence[Check] = CHECKS) -> Outcome:
    """Check this rank, and together with the other ranks of the job, if any.

    Raises:
        DetectionError: the launcher's variables contradict each other, or torchrun is missing.
    """
    devices, failures = _devices() if options.devices else (None, Result())
    context = _context(environment, options, devices)
    result = _own_result(
        context, [failures, *(run_check(check, context) for check in checks if not check.joint)]
    )
    if result.size == 1:
        return Outcome(report=Report.of_one(result))

    def joint() -> Result:
        chosen = [check for check in checks if check.joint and (options.devices or not check.needs_devices)]
        with_store = replace(context, store=store)
        return joined(run_check(check, with_store) for check in chosen)

    try:
        store = _connect(context, options)
        report = gather(store, result, joint=joint, wait_s=options.wait_s)
    except (Error, OSError, ImportError) as error:  # OSError: connections and time limits too
        text = f"The other ranks could not be reached: {error}"
        known = any(finding.text in text for finding in result.findings)
        return Outcome(
            report=Report.of_one(result, *([] if known else [problem(text)])),
            rank=result.rank,
            unreached=True,
        )
    return Outcome(report=report, store=store, rank=result.rank)


def _devices() -> tuple[DeviceFacts | None, Result]:
    try:
        return with_timeout(_DEVICES_S, facts_here, name=THREAD), Result()
    except ImportError as error:
        text = f"torch cannot be imported ({error}). Install it to train."
    except TimeoutError:
        text = f"Device detection did not end within {_DEVICES_S:g} s: a driver hangs. See `dmesg`."
    except RuntimeError as error:  # raised by a driver
        text = f"Device detection failed: {_headline(error)}"
    return None, Result(findings=[problem(text)])


def _context(environment: Environment, options: Options, devices: DeviceFacts | None) -> Context:
    started = detect(environment)
    refuse_pods(environment, started)
    undo_default_binding(environment, started.launcher)  # as ranks that join do
    variables = without_default_threads(environment, started.launcher)
    detected = with_main_host(detect(variables), variables)
    context = predict(variables, detected, machine(), devices=devices, available=available_here)
    return replace(context, environment=environment, run_folder=options.run_folder)


def _own_result(context: Context, results: Sequence[Result]) -> RankResult:
    """Return the results of this rank's checks."""
    result = joined(results)
    kind = "" if context.choice is None else context.choice.kind
    return RankResult(
        rank=context.place.rank,
        size=context.place.size,
        host=context.machine.hostname,
        summary=describe(context.detected, device=kind, backend=context.backend, threads=context.threads),
        rows=result.rows,
        findings=result.findings,
        facts=result.facts,
    )


def _connect(context: Context, options: Options) -> ResultStore:
    """Return the store of the job's ranks."""
    from samestep.ranks.rendezvous.store import open_store

    store = open_store(context.environment, context.detected, master=None, timeout_s=options.wait_s)
    return ResultStore(store)
