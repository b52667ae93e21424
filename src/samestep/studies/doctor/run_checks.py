"""Runs the doctor on one rank: its own checks, then those with the other ranks, then the report."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from samestep.base.env import Environment
from samestep.base.errors import Error
from samestep.base.machine.description import machine
from samestep.base.polling import with_timeout
from samestep.launchers.binding import undo_default_binding
from samestep.launchers.compute_threads import without_default_threads
from samestep.launchers.detect import LOOPBACK, detect
from samestep.launchers.lost_environment import refuse_pods
from samestep.launchers.mpi_hosts import with_main_host
from samestep.ranks.world.banner import describe
from samestep.ranks.world.device import DeviceFacts, available_here, facts_here
from samestep.studies.doctor.checks import CHECKS, THREAD, Check, run_check
from samestep.studies.doctor.context import Context, predict
from samestep.studies.doctor.gather import agree_on_exit_code, gather
from samestep.studies.doctor.masking import Mask, environment_rows, masked
from samestep.studies.doctor.pair_measurement import LinkServer
from samestep.studies.doctor.report import Report
from samestep.studies.doctor.results import RankResult, Result, ResultStore, joined, problem

_DEVICES_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of the command."""

    run_folder: Path = Path("runs")  # the run folder
    devices: bool = True  # whether to detect devices, and to join as a training does
    ticket: bool = False  # whether to mask secrets, and to report the environment variables
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
    """Check this rank, and with the other ranks of the job, if any, the links between them.

    Raises:
        DetectionError: the launcher's variables contradict each other, or torchrun is missing.
    """
    devices, failures = _devices() if options.devices else (None, Result())
    context = _context(environment, options, devices)
    mask = Mask.of(environment) if options.ticket else Mask()
    own = _own_result(
        context, options, mask, [failures, *(run_check(one, context) for one in checks if not one.joint)]
    )
    if own.size == 1:
        return Outcome(report=Report.of_one(own))

    def joint() -> Result:
        chosen = [one for one in checks if one.joint and (options.devices or not one.needs_devices)]
        with_store = replace(context, store=store)
        return masked(joined(run_check(one, with_store) for one in chosen), mask)

    try:
        store, server = _connect(context, own, options)
        try:
            report = gather(store, own, server, joint=joint, wait_s=options.wait_s)
        finally:
            server.close()
    except (Error, OSError, ImportError) as error:  # OSError: connections and time limits too
        text = mask.text(f"The other ranks could not be reached: {error}")
        known = any(finding.text in text for finding in own.findings)
        return Outcome(
            report=Report.of_one(own, *([] if known else [problem(text)])), rank=own.rank, unreached=True
        )
    return Outcome(report=report, store=store, rank=own.rank)


def _devices() -> tuple[DeviceFacts | None, Result]:
    try:
        return with_timeout(_DEVICES_S, facts_here, name=THREAD), Result()
    except ImportError as error:
        text = f"torch cannot be imported ({error}). Install it to train."
    except TimeoutError:
        text = f"Device detection did not end within {_DEVICES_S:g} s: a driver hangs. See `dmesg`."
    except RuntimeError as error:  # raised by a driver
        text = f"Device detection failed: {str(error).splitlines()[0]}"
    return None, Result(findings=[problem(text)])


def _context(environment: Environment, options: Options, devices: DeviceFacts | None) -> Context:
    started = detect(environment)
    refuse_pods(environment, started)
    undo_default_binding(environment, started.launcher)  # as ranks that join do
    variables = without_default_threads(environment, started.launcher)
    detected = with_main_host(detect(variables), variables)
    context = predict(variables, detected, machine(), devices=devices, available=available_here)
    return replace(context, environment=environment, run_folder=options.run_folder)


def _own_result(context: Context, options: Options, mask: Mask, results: Sequence[Result]) -> RankResult:
    """Return the results of this rank's checks; those of a ticket have the variables, and are masked."""
    result = joined(results)
    kind = "" if context.choice is None else context.choice.kind
    summary = describe(context.detected, device=kind, backend=context.backend, threads=context.threads)
    if options.ticket:
        result = masked(joined((result, Result(rows=environment_rows(context.environment)))), mask)
        summary = mask.text(summary)
    return RankResult(
        rank=context.place.rank,
        size=context.place.size,
        host=context.machine.hostname,  # not masked: ranks are compared by it, and a ticket needs it
        summary=summary,
        rows=result.rows,
        findings=result.findings,
        facts=result.facts,
    )


def _connect(context: Context, own: RankResult, options: Options) -> tuple[ResultStore, LinkServer]:
    """Return the store of the job's ranks, and the server that other ranks connect to for measurements."""
    from samestep.ranks.rendezvous.store import open_store

    store = open_store(context.environment, context.detected, master=None, timeout_s=options.wait_s)
    return ResultStore(store), LinkServer(_address(context, own))


def _address(context: Context, own: RankResult) -> str:
    """Return the address of this host at which the other ranks connect to this one."""
    if context.place.local_size == context.place.size:
        return LOOPBACK[0]
    every, used = own.facts.get("interfaces", ()), own.facts.get("interface")
    addresses = [address for one in every if one["name"] == used for address in one["addresses"]]
    return next((one for one in addresses if ":" not in one), next(iter(addresses), LOOPBACK[0]))
