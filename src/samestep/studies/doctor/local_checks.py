"""Runs the checks of one rank, one by one; a check that fails or hangs is itself a finding."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from samestep.base.env import Environment
from samestep.base.errors import UsageError
from samestep.base.machine import interfaces
from samestep.base.machine.description import package_version
from samestep.base.units import bytes_text
from samestep.observe.clock.accelerator_versions import toolkit_versions
from samestep.ranks.rendezvous import endpoint
from samestep.ranks.rendezvous.gloo_interface import IFNAME, own_address
from samestep.ranks.world.device import BACKENDS, DeviceFacts
from samestep.studies.doctor import (
    file_system,
    gpu_findings,
    gpus,
    infiniband,
    limits,
    network,
    orphaned_processes,
    settings,
)
from samestep.studies.doctor.check_result import Finding, Part, Row, joined
from samestep.studies.doctor.diagnosis import Diagnosis
from samestep.studies.doctor.text import numbers_text
from samestep.studies.doctor.time_limit import within


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """Input of the checks.

    Args:
        environment: environment variables of this process.
        diagnosis: how it would join.
        facts: the accelerators that it sees; None if they were not detected.
        runs: the run folder.
        root: the folder of /proc, /sys and /dev; tests have recordings of other machines.
    """

    environment: Environment
    diagnosis: Diagnosis
    facts: DeviceFacts | None
    runs: Path
    root: Path = Path("/")


@dataclass(frozen=True, slots=True)
class Look:
    """One check.

    Args:
        what: its subject, for messages.
        limit_s: time limit in seconds.
        call: runs the check.
    """

    what: str
    limit_s: float
    call: Callable[[Here], Part]


def look_at(look: Look, here: Here) -> Part:
    """Return the result of a check, or a finding if it failed or took too long."""
    try:
        return within(look.limit_s, lambda: look.call(here))
    except TimeoutError as error:
        text = f"The check of {look.what} failed: {error}. Something there hangs."
    except Exception as error:  # noqa: BLE001 - the other checks run after any error
        text = f"The check of {look.what} failed: {type(error).__name__}: {error}."
    return Part(findings=(Finding(text=text),))


def launched(here: Here) -> Part:
    """Return the launcher of this process, its place in the job, and its device, back end and threads."""
    diagnosis = here.diagnosis
    detected, machine = diagnosis.detected, diagnosis.machine
    evidence = [f"{name}={value}" for name, value in detected.evidence]
    rows: list[Row] = [("place", detected.place.describe()), ("launcher", detected.launcher)]
    rows += _named("because", evidence or ["no launcher's variables are set"])
    rows += [("outer", ", ".join(detected.outer))] if detected.outer else []
    rows += [("inferred", ", ".join(detected.assumed))] if detected.assumed else []
    if diagnosis.master is not None:
        rows.append(("rendezvous", "{}:{}".format(*diagnosis.master)))
    if here.facts is not None and diagnosis.choice is not None:
        rows.append(("device", f"{diagnosis.choice.device} ({diagnosis.choice.reason})"))
        rows.append(("back end", _back_end(diagnosis)))
    cpu = machine.cpu
    rows += [
        ("threads", f"{diagnosis.threads.count} ({diagnosis.threads.reason})"),
        ("processors", f"{cpu.usable} usable of {cpu.machine} ({cpu.limited_by}); {machine.processor}"),
        ("mask", f"CPUs {numbers_text(cpu.allowed)}"),
        ("memory", bytes_text(machine.memory_bytes)),
        ("host", f"{machine.hostname}, {machine.system}"),
    ]
    facts: dict[str, Any] = {
        "place": asdict(detected.place),
        "launcher": detected.launcher,
        "evidence": dict(detected.evidence),
        "master": diagnosis.master,
        "device": diagnosis.choice and diagnosis.choice.device,
        "kind": diagnosis.choice and diagnosis.choice.kind,
        "uuid": diagnosis.choice and diagnosis.choice.uuid,
        "backend": diagnosis.backend,
        "threads": {"count": diagnosis.threads.count, "reason": diagnosis.threads.reason},
        "cpus": list(cpu.allowed),
        "processors": {"usable": cpu.usable, "of": cpu.machine, "limited_by": cpu.limited_by},
        "memory_bytes": machine.memory_bytes,
        "host": machine.hostname,
    }
    return Part(rows=tuple(rows), findings=diagnosis.findings, facts=facts)


def versions(here: Here) -> Part:
    """Return the versions that ranks should share."""
    machine = here.diagnosis.machine
    found = {
        "samestep": machine.samestep,
        "python": machine.python,
        "torch": machine.torch,
        "numpy": package_version("numpy"),
        **(toolkit_versions(here.facts.kind) if here.facts is not None else {}),
    }
    text = ", ".join(f"{name} {version}" for name, version in found.items())
    return Part(rows=(("versions", text),), facts={"versions": found})


def networks(here: Here) -> Part:
    """Check the network interfaces, InfiniBand, and the settings that name them."""
    diagnosis, place = here.diagnosis, here.diagnosis.detected.place
    among = interfaces.interfaces(interfaces.addresses_here(), root=here.root)
    used, why = interfaces.carrier(
        among,
        named=here.environment.get(IFNAME, ""),
        source=_towards_master(diagnosis),
        own=own_address() if place.nodes > 1 else None,
        default=interfaces.default_interface(root=here.root),
    )
    ports = infiniband.ports(root=here.root)
    situation = settings.Situation(
        interfaces=among,
        ports=ports,
        backend=diagnosis.backend,
        nodes=place.nodes,
        local_size=place.local_size,
        accelerators=0 if here.facts is None else here.facts.count,
    )
    return joined(
        (
            network.judge(among, used, why, nodes=place.nodes),
            infiniband.judge(
                ports,
                among,
                backend=diagnosis.backend,
                nodes=place.nodes,
                device_files=infiniband.has_device_files(root=here.root),
            ),
            settings.judge(here.environment, situation),
        )
    )


def allowed(here: Here) -> Part:
    """Check the limits of this process."""
    active = any(port.is_active for port in infiniband.ports(root=here.root))
    return limits.judge(
        limits.read(root=here.root), local_size=here.diagnosis.detected.place.local_size, infiniband=active
    )


def accelerators(here: Here) -> Part:
    """Check the GPUs, and copy between those that this process sees; one rank of a host copies for all."""
    copies: Sequence[gpus.Copy] = ()
    place, choice = here.diagnosis.detected.place, here.diagnosis.choice
    if (
        here.facts is not None
        and here.facts.kind == "cuda"
        and here.facts.count > 1
        and place.local_rank == 0
    ):
        from samestep.studies.doctor.gpu_copies import copies_here

        copies = copies_here()
    return gpu_findings.judge(
        gpus.look(root=here.root, copies=copies),
        visible=here.facts.count if here.facts is not None else 0,
        uuid=choice.uuid if choice is not None else "",
        allowed=here.diagnosis.machine.cpu.allowed,
    )


def run_folder(here: Here) -> Part:
    """Check the run folder."""
    return file_system.judge(file_system.try_in(file_system.nearest(here.runs), root=here.root))


def left_over(here: Here) -> Part:
    """Find orphaned processes and shared memory of dead jobs."""
    own = orphaned_processes.around_here()
    master, place = here.diagnosis.master, here.diagnosis.detected.place
    holder = (
        orphaned_processes.listener_at(master[1], own=own) if master is not None and place.is_main else None
    )
    return orphaned_processes.judge(
        orphaned_processes.orphans(orphaned_processes.processes_here(), own=own),
        orphaned_processes.segments_of_the_dead(),
        holder,
        None if master is None else master[1],
    )


LOOKS = (
    Look("the launcher", 5.0, launched),
    Look("versions", 20.0, versions),
    Look("networks", 15.0, networks),
    Look("limits", 5.0, allowed),
    Look("accelerators", 60.0, accelerators),
    Look("the run folder", 20.0, run_folder),
    Look("orphaned processes and shared memory", 15.0, left_over),
)


def examine(here: Here, looks: Sequence[Look] = LOOKS) -> Part:
    """Return the results of all checks."""
    return joined(look_at(look, here) for look in looks)


def _back_end(diagnosis: Diagnosis) -> str:
    """Return the row of the table of back ends that applies, and why."""
    if diagnosis.backend is None:
        return "none needed"
    kind = diagnosis.choice.kind if diagnosis.choice is not None else "cpu"
    others = ", ".join(f"{carrier} for {carried}" for carried, carrier in BACKENDS.items() if carried != kind)
    return f"{diagnosis.backend} (which carries tensors of device {kind}; {others})"


def _towards_master(diagnosis: Diagnosis) -> str | None:
    if diagnosis.master is None:
        return None
    try:
        return interfaces.source_towards(endpoint.resolve(diagnosis.master[0], timeout_s=5.0))
    except UsageError:  # the diagnosis has a finding for it
        return None


def _named(name: str, values: Sequence[str]) -> list[Row]:
    return [(name if i == 0 else "", value) for i, value in enumerate(values)]
