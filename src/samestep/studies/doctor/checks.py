"""Lists all checks, and runs each with a time limit; a check that fails or hangs is itself a finding."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from samestep.base.machine.description import package_version
from samestep.base.polling import with_timeout
from samestep.base.units import bytes_text, ranges
from samestep.hooks.registry import problems
from samestep.hooks.table import ALL
from samestep.ranks.world.device import BACKENDS, toolkit_versions
from samestep.studies.doctor import gpus, joining, limits, network, orphans, run_folder, settings
from samestep.studies.doctor.context import Context
from samestep.studies.doctor.results import Result, Row, joined, problem, rows

THREAD = "samestep-doctor"
"""The name of the thread that runs a check."""


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
    found: list[Row] = [
        ("place", detected.place.describe()),
        ("launcher", detected.launcher),
        *rows("because", evidence or ["no launcher's variables are set"]),
        *rows("outer", [", ".join(detected.outer)] if detected.outer else []),
        *rows("inferred", [", ".join(detected.assumed)] if detected.assumed else []),
        *rows("rendezvous", ["{}:{}".format(*context.master)] if context.master else []),
    ]
    if context.devices is not None and choice is not None:
        found.append(("device", f"{choice.device} ({choice.reason})"))
        found.append(("back end", _backend(context.backend, choice.kind)))
    found += [
        ("threads", f"{threads.count} ({threads.reason})"),
        ("processors", f"{cpu.usable} usable of {cpu.machine} ({cpu.limited_by}); {machine.processor}"),
        ("mask", f"CPUs {ranges(cpu.allowed, separator=', ')}"),
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
    return Result(rows=found, findings=context.findings, facts=facts)


def versions(context: Context) -> Result:
    """Return the versions that ranks should share."""
    machine = context.machine
    found = {
        "samestep": machine.samestep,
        "python": machine.python,
        "torch": machine.torch,
        "numpy": package_version("numpy"),
        **(toolkit_versions(context.devices.kind) if context.devices is not None else {}),
    }
    text = ", ".join(f"{name} {version}" for name, version in found.items())
    return Result(rows=[("versions", text)], facts={"versions": found})


def networks(context: Context) -> Result:
    """Check the network interfaces, InfiniBand, and the settings that name them."""
    found = network.read(context)
    return joined(
        (network.interfaces(found), network.infiniband(found), settings.judge(context.environment, found))
    )


def hooks(_: Context) -> Result:
    """Check that the installed libraries have every attribute that samestep replaces."""
    wrong = [problem(f"{one}.") for one in problems(ALL)]
    return Result(rows=[("hooks", f"{len(ALL) - len(wrong)} of {len(ALL)} fit")], findings=wrong)


CHECKS: Sequence[Check] = (
    Check("the launcher", launcher, 5.0),
    Check("versions", versions, 20.0),
    Check("networks", networks, 15.0),
    Check("limits", limits.check, 5.0),
    Check("accelerators", gpus.check, 60.0),
    Check("hooks into libraries", hooks, 60.0, needs_devices=True),
    Check("the run folder", run_folder.check, 20.0),
    Check("orphaned processes and shared memory", orphans.check, 15.0),
    Check("the shared run folder", run_folder.check_shared, 25.0, joint=True),
    Check("joining", joining.check, 40.0, joint=True, needs_devices=True, on_timeout=joining.ON_TIMEOUT),
)


def _backend(backend: str | None, kind: str) -> str:
    """Return the row of the table of back ends that applies, and why."""
    if backend is None:
        return "none needed"
    others = ", ".join(f"{carrier} for {carried}" for carried, carrier in BACKENDS.items() if carried != kind)
    return f"{backend} (which carries tensors of device {kind}; {others})"
