"""Runs a script on some workers with a probe on each, and discards the files that the script writes.

The tables at the end name the observers of a run. A new check needs its code in `verdict.NoteCode`, a row in
``docs/guide/verify.md``, a training of a few lines with that mistake in ``tests/unit/verify/observers``, and
no note about any without it.
"""

import io
import json
import os
import pickle
import random
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, redirect_stdout, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

import cloudpickle

from samestep.autopilot.files.folder_listings import ShuffledListings
from samestep.autopilot.files.overlay_files import writing_to
from samestep.autopilot.once_script import run_launched, run_once, silenced, without_ranks
from samestep.autopilot.script.devices import gloo_on_cpu, own_device
from samestep.autopilot.script.options import Options
from samestep.autopilot.script.seeds import SEED_BITS, fixed_seeds, seed_all
from samestep.base import env
from samestep.base.errors import Error, UsageError
from samestep.base.machine.accelerators import can_have_accelerators, only_first_gpus
from samestep.base.polling import holds_within
from samestep.launch.job import Job, Program
from samestep.launch.local import local_backend
from samestep.launch.local.child import Entry, Report, ReportPipe, Start, Watch, become, entry_of
from samestep.launch.local.failure import Failure
from samestep.launch.local.hosting import Ending
from samestep.launch.local.local_backend import Outcome
from samestep.run.decision import TRAINS_ALONE, filled
from samestep.run.spawning_script import SpawnedRuns, with_own_workers
from samestep.verify.model_parallel import Parts, grouped
from samestep.verify.module_recorder import ModuleRecorder
from samestep.verify.observers.check import Check, Checks, Observer
from samestep.verify.observers.evaluation import (
    DropoutInEvaluation,
    EvaluationModeKept,
    SpectralNormNotBegun,
    TrainingModeInEvaluation,
)
from samestep.verify.observers.gradient_coverage import GradientCoverage, UpdatesStop
from samestep.verify.observers.loaders import LoaderGenerators, RowsNotUsed, SamplerEpochs
from samestep.verify.observers.loss_graphs import LossArguments
from samestep.verify.observers.rank_observers import (
    DeviceOfRank,
    RendezvousAddress,
    SavedStates,
    ThreadsOfRank,
)
from samestep.verify.observers.saved_states import SavedStateDiffers
from samestep.verify.observers.step_order import GradientZeroing, LossScaling, ScheduleOrder
from samestep.verify.precision import in_double_precision
from samestep.verify.probe import Probe
from samestep.verify.rank_features import global_batch_norm, rank_features_disabled
from samestep.verify.run_length import ProgressLine, RunLength, Shown
from samestep.verify.run_record import RunRecord, merged
from samestep.verify.script_settings import recorded_dropouts
from samestep.verify.trace import Trace, Writer, read, read_modules

Kind: TypeAlias = Literal["serial", "native", "spawns"]
SEED = 4
"""Seed of the global generators, equal in all runs, for scripts that do not seed them: arbitrary."""
STOP_TIMEOUT_S = 10.0
"""Time that a worker waits after its last step for the other workers to finish theirs: a guess."""
_POLL_S = 0.05  # longest pause between two looks at them
_KEPT: list[Probe] = []
"""Probes, and with them the models, kept until the process ends: freeing the last DistributedDataParallel of
a destroyed group can deadlock between Gloo's threads and Python's lock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRun:
    """One run of a verification."""

    program: Program  # the script and its arguments
    kind: Kind  # serial, native, or one that spawns its workers by `torch.multiprocessing.spawn`
    size: int  # number of workers
    length: RunLength  # decides after which step the run is stopped
    progress: ProgressLine  # shows the current step
    folder: Path  # folder of its traces and of all files that the script writes
    options: Options  # how a serial script is split across workers
    watch: Watch  # runs each worker, and ends the run if it hangs
    disturb: bool = False  # whether gradients are disturbed by their rounding
    # whether the reference is a run of another script, whose notes are not about this one
    has_other_reference: bool = False
    # kind of script whose rank-dependent features (batch norm, dropout) are disabled, if any
    neutral: Kind | None = None
    # shapes of the reference's parameters by name, of which the ranks may hold parts
    wholes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    double: bool = False  # whether the script computes in double precision, whatever it asks for
    # gives the folders that a distributed script lists another order on each rank
    order: ShuffledListings | None = None
    # whether each rank is a fresh interpreter, which orders sets of texts its own way
    own_hashes: bool = False
    modules_of: int | None = None  # step whose module calls are recorded, if any
    files: Path | None = None  # folder of the files that the script writes; None for one of this run
    # how a rank is ended after the last step: without Python's cleanup, or by a signal of that number
    ended_by: int = 0

    def run(self) -> RunRecord:
        """Run the script and return its record.

        Raises:
            KeyboardInterrupt: the run was interrupted by a signal.
        """
        outcome = self._outcome()
        if outcome.interrupted_by:
            raise KeyboardInterrupt
        cause = outcome.cause
        if self.kind == "spawns":
            if cause is not None and cause.message == TRAINS_ALONE:
                shutil.rmtree(self.folder)
                return replace(self, kind="native", program=self._filled()).run()
            cause = self._cause(cause)
        run = RunRecord(
            traces=[self._trace_of(rank) for rank in range(self._recording)],
            runs_once=self.kind == "serial",
            failure=cause,
            modules=[read_modules(self._modules_of(rank)) for rank in range(self._recording)],
            workers=self.size,
        )
        return merged(grouped(run))

    def _outcome(self) -> Outcome:
        """Run the workers, or the script that spawns them, to their end."""
        self.folder.mkdir(parents=True)
        needs_all = self.kind != "serial"
        job = Job(program=self.program, workers=self.size, grace_s=3.0, needs_all=needs_all)
        run = partial(local_backend.run, job, on_round_end=lambda *_: None)
        if self.kind == "spawns":
            return run(entry_of(self._filled(), around=self._as_script), local=1, alone=True)
        alone = self._starts_helpers
        entry = entry_of(self.program, around=self._as_worker, watch=self.watch, joins=not alone)
        if self.own_hashes:
            entry = in_fresh_interpreters(entry, self.folder)
        return run(entry, local=1 if alone else self.size, alone=alone)

    @property
    def _recording(self) -> int:
        """The number of workers that run the script."""
        return 1 if self.kind == "serial" else self.size

    @property
    def _starts_helpers(self) -> bool:
        """Whether the worker that runs a serial script starts the others, as `Decision.has_helpers`."""
        return self.kind == "serial" and (self.options.device == "cpu" or not can_have_accelerators())

    @property
    def _disables_features(self) -> bool:
        """Whether rank-dependent features of a distributed script are disabled."""
        return self.neutral not in (None, "serial")

    def _filled(self) -> Program:
        """Return the program with this number of workers in its flags."""
        return filled(self.program, n=self.size, local=self.size, nodes=1, node_rank=0)

    def _cause(self, of_script: Failure | None) -> Failure | None:
        """Return the failure of a worker, which a script may catch; otherwise that of the script itself.

        Raises:
            UsageError: the script does not start the workers that were asked for.
        """
        with suppress(OSError):
            return Failure(**json.loads(self._failure.read_text(encoding="utf-8")))
        if of_script is not None and of_script.error == UsageError.__name__:
            raise UsageError(of_script.message)
        return of_script

    @property
    def _failure(self) -> Path:
        return self.folder / "failure.json"

    @property
    def _files(self) -> Path:
        return self.files or self.folder / "files"

    def _folder_of(self, rank: int) -> Path:
        return self.folder / str(rank)

    def _modules_of(self, rank: int) -> Path:
        return self._folder_of(rank) / "modules.jsonl"

    def _trace_of(self, rank: int) -> Trace:
        return read(self._folder_of(rank) / "trace.jsonl", rank=rank)

    def _as_script(self, run: Callable[[], Ending]) -> Ending:
        """Run a script that spawns its workers, with a probe attached to each."""
        how = SpawnedRuns(
            asked=self.size,
            around=self._as_worker,
            watch=lambda _: self.watch,
            needs_fork="verify",
            must_spawn=True,
            has_steps=lambda ranks: any(self._trace_of(rank).begun for rank in ranks),
            was_stopped=lambda rank: (self._folder_of(rank) / "stopped").exists(),
            seed=lambda: _seed(rank_of_process()),
            on_failure=lambda cause: self._failure.write_text(json.dumps(asdict(cause)), encoding="utf-8"),
        )
        _seed(0)
        on_cpu = gloo_on_cpu(gpus=self.size) if self.options.device == "cpu" else nullcontext()
        if not any("{n}" in argument for argument in self.program.args):  # the GPUs decide on the number
            env.export(only_first_gpus(env.snapshot(), self.size))
        # The workers are forked within these; they have their files in common, as processes of one script.
        with (
            env.exported(env.UNTRACKED),
            silenced(),
            on_cpu,
            writing_to(self._files, self.order, but_in=self.folder) as overlay,  # the traces of its workers
        ):
            return with_own_workers(run, replace(how, around=partial(self._as_worker, files=overlay.made)))

    def _as_worker(self, run: Callable[[], Ending], *, files: Sequence[str] = ()) -> Ending:
        """Run the script on one worker, with a probe attached; `files` are those that it changes."""
        rank = rank_of_process()
        if self.kind == "serial" and rank:
            return run_launched(run, options=self.options)  # which helps rank 0
        folder = self._folder_of(rank)
        folder.mkdir(parents=True, exist_ok=True)  # workers that have not trained may have had it
        stdout = _CapturedStdout(folder / "stdout")
        probe = Probe(
            Writer(folder / "trace.jsonl"),
            rank,
            length=Shown(self.length, self.progress) if rank == 0 else self.length,
            stop=partial(self._stop, rank),
            printed=stdout.text,
            disturb=self.disturb,
            within=global_batch_norm if self._disables_features else nullcontext,
        )
        probe.changed_files, probe.parts = files, Parts(self.wholes)
        _KEPT.append(probe)
        if self.order is not None:
            probe.facts.listed = self.order.folders
        recorder = self._recorder(probe, rank)  # opens its file before those of the script are redirected

        def probed() -> Ending:
            with (
                recorder,  # inside of the probe, which numbers a model before
                probe.attached(self._observers(probe)),
                redirect_stdout(stdout.stream),
            ):
                ending = run()
            ended = ending.error or (f"exit code {ending.exit_code}" if ending.exit_code else "end")
            probe.end(ended, ending.message)
            return ending

        with env.exported(env.UNTRACKED), silenced(), ExitStack() as stack:
            if self._disables_features:
                stack.enter_context(rank_features_disabled(partial(setattr, probe.facts, "own_stream")))
            if self.neutral is None:
                stack.enter_context(recorded_dropouts(probe.note_dropout))
            if self.double:
                stack.enter_context(in_double_precision())
            try:
                return self._as_its_kind(probed, rank, probe)
            except Error as error:
                probe.end(type(error).__name__, str(error))
                raise

    def _as_its_kind(self, probed: Callable[[], Ending], rank: int, probe: Probe) -> Ending:
        if self.kind == "spawns":
            return probed()
        if self.kind == "native":
            _seed(rank)
            on_cpu = gloo_on_cpu() if self.options.device == "cpu" else nullcontext()
            files = writing_to(self._files, self.order)  # of all ranks, as on one file system
            with on_cpu, files as overlay:
                probe.changed_files = overlay.made
                return probed()
        if self.size > 1:
            options = replace(self.options, scratch=self._files, seed=SEED)
            if self._starts_helpers:
                return run_once(probed, size=self.size, options=options)
            return run_launched(probed, options=options)
        with own_device(self.options), without_ranks(), writing_to(self._files), fixed_seeds(SEED):
            return probed()

    def _observers(self, probe: Probe) -> list[Observer]:
        """Return what observes a rank: nothing where gradients are disturbed or features disabled."""
        if self.disturb or self.neutral is not None:
            return []
        if self.size == 1:
            return [kind() for kind in OF_ONE_WORKER]
        if self.kind == "serial":
            return []
        kinds = [
            *(OF_EACH_RANK if self.kind == "native" else ()),
            *(OF_ONE_WORKER if self.has_other_reference else ()),
        ]
        return [*(kind() for kind in kinds), SavedStates(probe.written)]

    def _recorder(self, probe: Probe, rank: int) -> AbstractContextManager[None]:
        """Return a context that records the module calls of the step, if there is one."""
        if self.modules_of is None:
            return nullcontext()
        return ModuleRecorder(
            Writer(self._modules_of(rank)),
            probe,
            step=self.modules_of,
            with_parts=self.kind != "serial" or self.size == 1,
            disturb=self.disturb,
        ).attached()

    def _stop(self, rank: int) -> None:
        """End this process once all ranks have made their steps.

        It ends without Python's cleanup, or gets a signal: if that has a handler, the script goes on, and
        another call ends it.
        """
        mark = self._folder_of(rank) / "stopped"
        is_first = not mark.exists()
        mark.touch()
        marks = [self._folder_of(k) / "stopped" for k in range(self._recording)]
        holds_within(lambda: all(mark.exists() for mark in marks), STOP_TIMEOUT_S, most_s=_POLL_S)
        if self.ended_by and is_first:
            signal.raise_signal(self.ended_by)
            return
        os._exit(0)


def rank_of_process() -> int:
    """Return the rank of this process, 0 without one."""
    return env.integer(env.snapshot(), "RANK") or 0


def _seed(rank: int) -> None:
    """Seed a native script: fresh interpreters differ on each rank, and here are also equal in each run."""
    seed_all(partial(random.Random(SEED + rank).getrandbits, SEED_BITS))


class _MainThreadText(io.TextIOWrapper):
    """A text file that leaves out what other threads write: that belongs to no step of the training."""

    def write(self, text: str) -> int:
        """Write a text, if the main thread calls this."""
        return super().write(text) if threading.current_thread() is threading.main_thread() else len(text)


class _CapturedStdout:
    """A file that replaces stdout, with a file descriptor of its own.

    Args:
        path: path of the file.
    """

    def __init__(self, path: Path) -> None:
        self.stream = _MainThreadText(path.open("wb"), encoding="utf-8", line_buffering=True)
        self._reader = path.open("rb")

    def text(self) -> str:
        """Return the text written so far."""
        # A script can put a text file of its own around the same buffer, also after it has detached that.
        for stream in (sys.stdout, self.stream):
            with suppress(Exception):
                stream.flush()
        self._reader.seek(0)
        return self._reader.read().decode(errors="replace")


def in_fresh_interpreters(entry: Entry, folder: Path) -> Entry:
    """Return an entry that replaces the worker by a fresh interpreter with a hash seed of its own.

    It runs `entry`, as `torchrun` would start it. The order of a set of texts, and the hash of a text, depend
    on that seed, which forked ranks have in common.

    Args:
        entry: what a worker runs; its end is known by the exit code and by what it has recorded.
        folder: for the files that tell a new interpreter what to run.
    """

    def run(start: Start, pipe: ReportPipe) -> Report:
        del pipe  # which the new interpreter does not have
        path = folder / f"entry-{start.place.rank}"
        path.write_bytes(cloudpickle.dumps((entry, start)))
        env.export({"PYTHONHASHSEED": str(start.place.rank + 1)})
        code = f"from {__name__} import run_entry; run_entry()"
        return become(Program(target=sys.executable, kind="executable", args=("-c", code, str(path))))

    return run


def run_entry() -> None:
    """Run the entry that a file holds, and exit with its exit code."""
    entry, start = pickle.loads(Path(sys.argv[1]).read_bytes())  # noqa: S301 - of the worker that became this process
    report = entry(start, ReportPipe.of(os.open(os.devnull, os.O_WRONLY)))
    os._exit(report.ending.exit_code & 0xFF)


CHECKS: Sequence[Callable[[], Check]] = (
    GradientCoverage,
    GradientZeroing,
    EvaluationModeKept,
    TrainingModeInEvaluation,
    ScheduleOrder,
    LossScaling,
    LossArguments,
    LoaderGenerators,
    SamplerEpochs,
    RowsNotUsed,
    UpdatesStop,
    DropoutInEvaluation,
    SpectralNormNotBegun,
    SavedStateDiffers,
)
"""Checks of the run on one worker."""
OF_ONE_WORKER: Sequence[Callable[[], Observer]] = (partial(Checks, CHECKS),)
"""Observers of the run on one worker."""
CHECKS_OF_RANK: Sequence[Callable[[], Check]] = (EvaluationModeKept,)
"""Checks of each rank, as a rank can have a mode of its own: rank 0 alone calls ``model.train()``."""
OF_EACH_RANK: Sequence[Callable[[], Observer]] = (
    DeviceOfRank,
    ThreadsOfRank,
    RendezvousAddress,
    partial(Checks, CHECKS_OF_RANK),
)
"""Observers of each rank of a distributed script that a launcher starts."""
