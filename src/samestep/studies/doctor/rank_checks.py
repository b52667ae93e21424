"""Runs the doctor on one rank: its own checks, then those with the other ranks, then the report."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from samestep.base.env import Environment
from samestep.base.errors import Error
from samestep.base.machine.description import machine
from samestep.base.machine.interfaces import Interface
from samestep.launchers.detect import LOOPBACK, detect
from samestep.launchers.mpi_hosts import introduced
from samestep.launchers.side_effects import unbind, without_unasked_threads
from samestep.launchers.torchrun_env import refuse_pods
from samestep.ranks.world.banner import describe
from samestep.ranks.world.device import DeviceFacts, available_here, facts_here
from samestep.studies.doctor import file_system
from samestep.studies.doctor.check_result import Finding, Part, joined
from samestep.studies.doctor.diagnosis import Diagnosis, diagnose
from samestep.studies.doctor.gather import StoreBoard, Trial, gather, settle
from samestep.studies.doctor.links import Board
from samestep.studies.doctor.local_checks import LOOKS, Here, Look, examine
from samestep.studies.doctor.masking import Mask, environment_rows, masked, masked_part
from samestep.studies.doctor.pair_measurement import Door
from samestep.studies.doctor.rank_results import Examination
from samestep.studies.doctor.report import Report, of_all, of_one
from samestep.studies.doctor.time_limit import within

_DEVICES_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """Options of the command.

    Args:
        runs: the run folder.
        devices: whether to detect devices, and to join as a training does.
        ticket: whether to mask secrets, and to report the environment variables.
        wait_s: seconds to wait for the other ranks.
    """

    runs: Path = Path("runs")
    devices: bool = True
    ticket: bool = False
    wait_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Outcome of the doctor on one rank.

    Args:
        report: the report that rank 0 prints, or that a rank prints which could not reach the others; None on
            other ranks.
        board: the store in which the ranks agree on the exit code; None if this rank is alone.
        rank: this rank.
        alone: whether the other ranks could not be reached.
    """

    report: Report | None
    board: Board | None = None
    rank: int = 0
    alone: bool = False

    def settle(self) -> int:
        """Return the exit code; the same on all ranks that reached each other."""
        code = None if self.report is None else int(self.report.hurts)
        others = () if self.report is None else [one.rank for one in self.report.examinations[1:]]
        if self.board is None:
            return code or 0
        try:
            return settle(self.board, rank=self.rank, others=others, code=code)
        except ConnectionError:  # rank 0 has reported, and exited
            return code or 0


def consult(environment: Environment, wishes: Wishes, looks: Sequence[Look] = LOOKS) -> Told:
    """Check this rank, and with the other ranks of the job, if any, the links between them.

    Args:
        environment: environment variables of this process.
        wishes: options of the command.
        looks: the checks of this rank.

    Raises:
        DetectionError: the launcher's variables contradict each other, or torchrun is missing.
    """
    facts, findings = _devices() if wishes.devices else (None, [])
    started = detect(environment)
    refuse_pods(environment, started)
    launcher = started.launcher
    unbind(environment, launcher)  # as ranks that join do
    variables = without_unasked_threads(environment, launcher)
    diagnosis = diagnose(
        variables,
        machine(),
        facts=facts,
        available=available_here,
        detected_by=lambda env: introduced(detect(env), env),
    )
    here = Here(environment=environment, diagnosis=diagnosis, facts=facts, runs=wishes.runs)
    own = _examination(here, joined((Part(findings=tuple(findings)), examine(here, looks))), wishes)
    mask = Mask.of(environment) if wishes.ticket else Mask()
    place = diagnosis.detected.place
    if place.size == 1:
        return Told(report=of_one(own))
    try:
        board, door = _meeting(environment, diagnosis, own, wishes)
        try:
            gathered = gather(board, own, door, trials=_trials(wishes, own, mask), wait_s=wishes.wait_s)
        finally:
            door.close()
    except (Error, OSError, ImportError) as error:  # OSError: connections and time limits too
        why = Finding(text=mask.text(f"The other ranks could not be reached: {error}"))
        known = any(finding.text in why.text for finding in own.findings)
        return Told(report=of_one(own) if known else of_one(own, why), rank=place.rank, alone=True)
    return Told(report=None if gathered is None else of_all(gathered), board=board, rank=place.rank)


def _devices() -> tuple[DeviceFacts | None, list[Finding]]:
    try:
        return within(_DEVICES_S, facts_here), []
    except ImportError as error:
        text = f"torch cannot be imported ({error}). Install it to train."
    except TimeoutError:
        text = f"Device detection did not end within {_DEVICES_S:g} s: a driver hangs. See `dmesg`."
    except RuntimeError as error:  # raised by a driver
        text = f"Device detection failed: {str(error).splitlines()[0]}"
    return None, [Finding(text=text)]


def _examination(here: Here, part: Part, wishes: Wishes) -> Examination:
    diagnosis = here.diagnosis
    place = diagnosis.detected.place
    summary = describe(
        diagnosis.detected,
        device=diagnosis.choice.kind if diagnosis.choice is not None else "",
        backend=diagnosis.backend,
        threads=diagnosis.threads,
    )
    if wishes.ticket:
        part = joined((part, Part(rows=tuple(environment_rows(here.environment)))))
    own = Examination.of(
        part, rank=place.rank, size=place.size, host=diagnosis.machine.hostname, summary=summary
    )
    return masked(own, Mask.of(here.environment)) if wishes.ticket else own


def _meeting(
    environment: Environment, diagnosis: Diagnosis, own: Examination, wishes: Wishes
) -> tuple[Board, Door]:
    """Return the store of the job's ranks, and the server that other ranks connect to for measurements."""
    from samestep.ranks.rendezvous.store import open_store

    store = open_store(environment, diagnosis.detected, master=None, timeout_s=wishes.wait_s)
    return StoreBoard(store), Door(_address(diagnosis, own))


def _address(diagnosis: Diagnosis, own: Examination) -> str:
    """Return the address of this host at which the other ranks connect to this one."""
    place = diagnosis.detected.place
    if place.local_size == place.size:
        return LOOPBACK[0]
    among = [Interface(**one) for one in own.facts.get("interfaces", ())]
    used = next((one for one in among if one.name == own.facts.get("interface")), None)
    addresses = () if used is None else used.addresses
    return next((one for one in addresses if ":" not in one), next(iter(addresses), LOOPBACK[0]))


def _trials(wishes: Wishes, own: Examination, mask: Mask) -> list[Trial]:
    """Return the joint checks of all ranks; their findings are masked before they are posted."""
    from samestep.studies.doctor import joint_checks

    runs = file_system.nearest(wishes.runs)

    def one_folder(board: Board) -> Part:
        return masked_part(joint_checks.one_folder(board, runs, rank=own.rank, size=own.size), mask)

    def one_sum(_: Board) -> Part:
        return masked_part(joint_checks.one_sum(), mask)

    return [one_folder, one_sum] if wishes.devices else [one_folder]
