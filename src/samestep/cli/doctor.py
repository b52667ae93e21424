"""``samestep doctor``: what was detected here, from which variables, and what follows."""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import typer

from samestep.base import env
from samestep.base.machine import machine
from samestep.base.units import bytes_text
from samestep.world.banner import describe
from samestep.world.device import DeviceFacts, available_here, facts_here
from samestep.world.diagnosis import Diagnosis, Finding, diagnose


def doctor(
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
    devices: bool = typer.Option(True, help="Look for devices and back ends; imports torch."),
) -> int:
    """Say what was detected here, from which variables, and what follows; nothing is started.

    Started as several ranks, rank 0 reports, and any other tells its own problems on stderr. Exits with 1
    if something found will hurt a run, and with 2 if the launcher's variables contradict each other.
    """
    environment = env.snapshot()
    missing: list[Finding] = []
    facts = None
    if devices:
        try:
            facts = facts_here()
        except ImportError as error:
            missing.append(Finding(text=f"torch cannot be imported ({error}). Install it to train."))
    diagnosis = diagnose(environment, machine(), facts=facts, available=available_here)
    findings = (*missing, *diagnosis.findings)
    if diagnosis.detected.place.is_main:
        if as_json:
            print(json.dumps(_record(diagnosis, findings)))
        else:
            print("\n".join(_lines(diagnosis, facts, findings)))
    else:
        who = f"rank {diagnosis.detected.place.rank} on {diagnosis.machine.hostname}"
        sys.stderr.write("".join(f"{who}: problem: {one.text}\n" for one in findings if one.hurts))
    return int(any(finding.hurts for finding in findings))


def _record(diagnosis: Diagnosis, findings: tuple[Finding, ...]) -> dict[str, Any]:
    record = asdict(diagnosis)
    record["detected"]["evidence"] = dict(diagnosis.detected.evidence)
    record["machine"]["cpu"] |= {
        "usable": diagnosis.machine.cpu.usable,
        "limited_by": diagnosis.machine.cpu.limited_by,
    }
    return {"summary": _summary(diagnosis), **record, "findings": [asdict(finding) for finding in findings]}


def _summary(diagnosis: Diagnosis) -> str:
    device = diagnosis.choice.kind if diagnosis.choice else ""
    return describe(diagnosis.detected, device=device, backend=diagnosis.backend, threads=diagnosis.threads)


def _lines(diagnosis: Diagnosis, facts: DeviceFacts | None, findings: tuple[Finding, ...]) -> Iterator[str]:
    yield _summary(diagnosis)
    yield ""
    for name, value in _rows(diagnosis, facts):
        yield f"  {name:<12}{value}"
    if findings:
        yield ""
    for finding in findings:
        yield f"{'problem' if finding.hurts else 'note'}: {finding.text}"


def _rows(diagnosis: Diagnosis, facts: DeviceFacts | None) -> Iterator[tuple[str, str]]:
    """Yield what was found, as names and values; what decided comes right after what it decided."""
    detected, here = diagnosis.detected, diagnosis.machine
    yield "place", detected.place.describe()
    yield "launcher", detected.launcher
    first, *rest = [f"{name}={value}" for name, value in detected.evidence] or [
        "no launcher's variables are set"
    ]
    yield "because", first
    yield from (("", line) for line in rest)
    if detected.outer:
        yield "around it", ", ".join(detected.outer)
    if detected.assumed:
        yield "not told", ", ".join(detected.assumed)
    if diagnosis.master is not None:
        yield "meets at", "{}:{}".format(*diagnosis.master)
    if facts is not None and diagnosis.choice is not None:
        yield "device", f"{diagnosis.choice.device} ({diagnosis.choice.reason})"
        yield "back end", diagnosis.backend or "none needed"
    yield "threads", f"{diagnosis.threads.count} ({diagnosis.threads.reason})"
    cpu = here.cpu
    yield "processors", f"{cpu.usable} usable of {cpu.machine} ({cpu.limited_by}); {here.processor}"
    yield "memory", bytes_text(here.memory_bytes)
    yield "host", f"{here.hostname}, {here.system}"
    yield "versions", f"samestep {here.samestep}, python {here.python}, torch {here.torch}"
