"""What ``samestep run`` decides about a job, says about it, and then does."""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from samestep.autopilot.options import DEFAULTS, Options
from samestep.base import env
from samestep.base.errors import PUT_OFF, UsageError, WorkerFailed
from samestep.base.streams import write_stderr
from samestep.base.units import LONGEST_S, counted
from samestep.cli.around import around, watch
from samestep.cli.shares import bind_worker, bound_entry, share_of_threads
from samestep.launch.forking import fork_is_safe, release_compute_threads
from samestep.launch.hosting import Ending, host, leave
from samestep.launch.job import STDERR, Job, Program
from samestep.launch.meet import between_nodes, found_here, met, planned
from samestep.launch.plan import Join, Plan, Spawn
from samestep.launch.programs import become, entry_of, has_met
from samestep.launch.restarts import Restarts
from samestep.launch.supervisor import Outcome
from samestep.launch.variables import joined_variables
from samestep.measure.clock_file import ClockOptions
from samestep.source.modules import source_of, user_folders
from samestep.source.recognise import ScriptKind, classify
from samestep.world.banner import threads_text
from samestep.world.binding import in_words as binding_words
from samestep.world.compute_threads import Threads, thread_variables
from samestep.world.detect import Detected
from samestep.world.unasked import unbind

SILENT_COPIES = (
    "{size} workers ran to their end and none ever met another: {size} silent copies of one run. "
    "Have the script join its peers (`with samestep.join() as world:` or init_process_group), run it with "
    "-n 1, or say --mode native if copies are meant."
)
_HELP_FLAGS = {"-h", "--help", "--version", "--usage"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Everything about a run that is settled before it starts.

    Args:
        job: what was asked for.
        plan: who starts whom.
        found: who started this process.
        script: what the script is; None for an executable, or where the user says what it is.
        threads: compute threads of each worker; None where the program settles them: it brings its own
            workers, or joins another launcher's, which compare their processors.
        guarded: whether workers that never meet are an error.
        options: how a serial script is split across workers.
        hang_timeout_s: how long a rank may wait for another; 0 is without end.
        sanitize: whether the ranks are compared in every step.
        count: whether steps and samples are counted, and their times taken.
        clocking: what of each step is clocked and written down; None for nothing.
        bind: which processors each worker computes on; see `samestep.world.binding`.
        exit_code_is_told: whether the program has told itself why it ends with exit code 1.
    """

    job: Job
    plan: Plan
    found: Detected
    script: ScriptKind | None
    threads: Threads | None
    guarded: bool
    options: Options = DEFAULTS
    hang_timeout_s: float = 0.0
    sanitize: bool = False
    count: bool = False
    clocking: ClockOptions | None = None
    bind: str = "none"
    exit_code_is_told: bool = False

    @property
    def size(self) -> int:
        """Workers in total."""
        return self.plan.place.size if isinstance(self.plan, Join) else self.plan.size

    @property
    def speaks(self) -> bool:
        """Whether this process says what was decided: of those that a launcher started, the first."""
        return self.found.place.is_main

    @property
    def alone(self) -> bool:
        """Whether the program starts its own workers."""
        return self.script is not None and self.script.kind == "spawns"

    @property
    def steered(self) -> bool:
        """Whether the program knows of one worker only, and runs on several all the same."""
        return self.size > 1 and self.script is not None and self.script.kind == "serial"

    @property
    def told_by_join(self) -> bool:
        """Whether `samestep.join` in the program will say how many workers there are, and what each has."""
        return isinstance(self.plan, Join) and self.script is not None and self.script.joins


def decide(
    job: Job,
    *,
    mode: str,
    threads: int | None,
    master: tuple[str | None, int | None] = (None, None),
    environment: Mapping[str, str],
) -> Decision:
    """Settle how `job` runs; nothing is started and torch is not imported.

    Args:
        job: what to run.
        mode: ``auto`` to look at the script, ``native`` to start it on every worker whatever it is,
            ``autopilot`` to take it for a serial one.
        threads: compute threads of each worker, if the user said.
        master: address and port where the ranks meet, each if the user said.
        environment: this process's variables.

    Raises:
        UsageError: it cannot run like this; the message says why and what to do.
    """
    found = found_here(environment, master=master, nodes=job.nodes.count)
    unbind(environment, found.launcher)
    job, settled = planned(job, found)
    script = _script(job.program, mode)
    decision = Decision(
        job=job,
        plan=settled,
        found=found,
        script=script,
        threads=None,
        guarded=script is not None and not _HELP_FLAGS & set(job.program.args),
    )
    if decision.alone:
        _refuse_copies_of_launchers(decision)
        return decision
    if decision.told_by_join and threads is None:
        return decision
    return replace(decision, threads=share_of_threads(settled, found, environment, threads))


def watched(
    decision: Decision,
    *,
    hang_timeout: float,
    sanitize: bool,
    count: bool = False,
    clocking: ClockOptions | None = None,
) -> Decision:
    """Return the decision with what the user wants watched.

    Raises:
        UsageError: it cannot be.
    """
    if not 0 <= hang_timeout <= LONGEST_S:
        raise UsageError(
            f"--hang-timeout {hang_timeout:g} is no time to wait: give seconds, or 0 to wait without end."
        )
    if sanitize and (decision.size == 1 or decision.alone or decision.job.program.kind == "executable"):
        raise UsageError(
            "--sanitize compares the workers of a Python script: give -n 2 or more, and a script that "
            "does not start its own."
        )
    if (count or clocking) and (decision.alone or decision.job.program.kind == "executable"):
        flag = "--count" if count else "--clock"
        raise UsageError(f"{flag} looks into a Python script that does not start its own workers.")
    if clocking and starts_all(decision):
        clocking.refuse_used()
    return replace(decision, hang_timeout_s=hang_timeout, sanitize=sanitize, count=count, clocking=clocking)


def starts_all(decision: Decision) -> bool:
    """Return whether this process starts all workers: no other has begun to write what they write."""
    return isinstance(decision.plan, Spawn) and decision.plan.nodes.count == 1


def banner(decision: Decision) -> list[str]:
    """Return the lines that say what was found and decided."""
    if decision.alone or decision.told_by_join:
        words = binding_words(decision.bind)
        return [*decision.found.notes, *([f"workers are {words}"] if words else []), _what(decision)]
    return [headline(decision), *decision.found.notes, _what(decision)]


def headline(decision: Decision) -> str:
    """Return the line that says how many workers there will be."""
    threads = decision.threads
    each = "" if threads is None else f", {threads_text(threads, each=decision.size > 1)}"
    each += f", {words}" if (words := binding_words(decision.bind)) else ""
    if isinstance(decision.plan, Join):
        where = f"started by {decision.found.launcher}"
    elif decision.plan.nodes.count > 1:
        nodes = decision.plan.nodes
        count = f"{nodes.count}" if nodes.least is None else f"at most {nodes.count}"
        where = f"= {count} nodes x {decision.plan.local}"
    else:
        where = "on this node"
    return f"{counted(decision.size, 'worker')} {where}{each}"


def dry_run(decision: Decision) -> list[str]:
    """Return the whole decision as lines."""
    job = decision.job
    lines = [decision.plan.describe(), f"program: {' '.join(job.program.command(sys.executable))}"]
    if decision.threads is not None:
        lines.append(f"threads: {decision.threads.count} each ({decision.threads.reason})")
    elif decision.told_by_join:
        lines.append("threads: as samestep.join finds the workers' processors shared")
    lines.append(f"script: {_what(decision)}")
    if decision.bind != "none":
        lines.append(f"bind: {decision.bind}")
    if job.max_restarts:
        lines.append(f"restarts: up to {job.max_restarts}, each with a fresh store and port")
    if job.logs.folder is not None:
        lines.append(f"logs: {job.logs.folder / job.run_id}/attempt_K/LOCAL_RANK/{{stdout,stderr}}.log")
    return lines


def act(decision: Decision) -> int:
    """Run the job to its end and return the exit code of the run."""
    if decision.threads is not None:
        # Read when torch and NumPy are loaded, here or in a fresh interpreter.
        env.export(thread_variables(decision.threads))
    with met(decision.plan, decision.found, given=decision.job.nodes.count > 1) as settled:
        if (way := between_nodes(settled)) is not None and way.is_told and decision.speaks:
            tell(f"Gloo's messages between the nodes go by {way.name} ({way.why})")
        if isinstance(settled, Join):
            _run_here(decision, settled)
        outcome = _spawn(decision, settled)
    if outcome.put_off:
        return PUT_OFF
    if outcome.interrupted_by:
        tell(f"ended by signal {outcome.interrupted_by}; all workers were stopped.")
        return 128 + outcome.interrupted_by
    if outcome.elsewhere is not None:
        tell(f"{outcome.elsewhere}; this node has stopped its workers.")
        return outcome.elsewhere.code
    if outcome.silent_copies and decision.guarded and not decision.alone:
        raise WorkerFailed(SILENT_COPIES.format(size=decision.size))
    return outcome.cause.code if outcome.cause else 0


def tell(text: str) -> None:
    """Say something on stderr; stdout is the program's."""
    print(f"samestep: {text}", file=sys.stderr, flush=True)


def tell_end(decision: Decision, outcome: Outcome, restarts: Restarts) -> None:
    """Say how a round of workers failed, if it did."""
    cause = outcome.cause
    if cause is None or outcome.put_off:
        return
    if decision.exit_code_is_told and cause.exit_code == 1 and not cause.error:
        return
    words = cause.describe(decision.size)
    if isinstance(decision.plan, Spawn) and decision.plan.nodes.count > 1 and cause.weight:
        # Should no node have a better one, these words are all that is known of the cause.
        said = " ".join(cause.message.split()).rstrip(".")
        tell(f"{words}{said and f': {said}'}. If this follows from a failure on another node, see there.")
        return
    sys.stderr.write(cause.traceback)
    others = "the others were stopped" if decision.size > 1 and not decision.alone else "the run is over"
    tell(f"{words}; {others}{restarts.in_words()}.")


def _spawn(decision: Decision, spawn: Spawn) -> Outcome:
    ended = partial(tell_end, decision)
    job = decision.job
    hosted = job.program.kind != "executable" and fork_is_safe()
    if hosted:
        _import_once()
        hosted = release_compute_threads()
    if (decision.sanitize or decision.count or decision.clocking) and not hosted:
        raise UsageError(
            "--sanitize, --count and --clock need workers forked from this process, which cannot be: use "
            "torchrun or srun."
        )
    if decision.steered and not hosted:
        raise UsageError(
            f"{job.program.target} is a serial script, and this process cannot be forked into workers that "
            "steer it (another system than Linux, or other threads). Start it under torchrun or srun."
        )
    watched_by = watch(decision, shared_by=spawn.local if spawn.nodes.count == 1 else None)
    entry = entry_of(job.program, hosted=hosted, around=around(decision), watch=watched_by)
    entry = partial(bound_entry, decision, entry)
    if spawn.nodes.count > 1:
        from samestep.launch.backends import nodes

        return nodes.run(job, entry, local=spawn.local, nodes=spawn.nodes, tell=ended)
    from samestep.launch.backends import local

    count = 1 if decision.alone else spawn.local
    return local.run(job, entry, local=count, tell=ended, alone=decision.alone)


def _import_once() -> None:
    """Load what every worker needs before they are forked; nothing is computed here."""
    import torch.distributed  # noqa: F401


def _run_here(decision: Decision, join: Join) -> NoReturn:
    """Be the worker that the launcher started."""
    program, place = decision.job.program, join.place
    bind_worker(decision, place)
    env.export(joined_variables(place, join.master))
    if program.kind == "executable":
        ending = become(program).ending
    else:
        if place.size > 1 and decision.script is not None and decision.script.kind != "spawns":
            from samestep.world.torch_rendezvous import protect_rendezvous

            protect_rendezvous()
        ending = watch(decision)(partial(around(decision), lambda: host(program)), _last_word())
    write_stderr(ending.traceback)
    if ending.exit_code == 0 and decision.guarded and not has_met(place.size):
        tell(f"error: {SILENT_COPIES.format(size=place.size)}")
        leave(1)
    leave(ending.exit_code)


def watch_here(decision: Decision, work: Callable[[], None]) -> None:
    """Do a worker's work in this process, which a launcher started, and watch it."""

    def run() -> Ending:
        work()
        return Ending()

    watch(decision)(run, _last_word())


def _last_word() -> Callable[[Ending], None]:
    """Return what tells how a program has ended that cannot say it, wherever its own stderr goes."""
    stderr = os.dup(STDERR)

    def say(ending: Ending) -> None:
        os.write(stderr, ending.traceback.encode())

    return say


def _script(program: Program, mode: str) -> ScriptKind | None:
    """Return what the script is: as it looks, or as the user says."""
    if mode == "autopilot" and program.kind == "executable":
        raise UsageError("--mode autopilot steers Python scripts, and --no-python runs an executable.")
    if mode == "native" or program.kind == "executable":
        return None
    return ScriptKind("serial") if mode == "autopilot" else look_at(program)


def look_at(program: Program) -> ScriptKind:
    """Return what a script or module is, from its text."""
    if program.kind != "script" and program.target == "samestep":  # whose own verbs share out what they do
        return ScriptKind("native", joins=True)
    file, roots = text_of(program)
    return ScriptKind("native") if file is None else classify(file, roots=roots)


def text_of(program: Program) -> tuple[Path | None, list[Path]]:
    """Return the file of a script or module, if it has one, and the folders that its imports are from."""
    here, path = Path.cwd(), sys.path[1:]  # the first is this command's own folder
    if program.kind == "script":
        file = Path(program.target)
        return file, [file.parent, *user_folders(path), here]
    return source_of(program.target, [str(here), *path]), [here, *user_folders(path)]


def _refuse_copies_of_launchers(decision: Decision) -> None:
    """Refuse to start a script in several places that starts workers in each."""
    several_nodes = isinstance(decision.plan, Spawn) and decision.plan.nodes.count > 1
    if several_nodes or (isinstance(decision.plan, Join) and decision.size > 1):
        why = decision.script.evidence if decision.script else ""
        raise UsageError(
            f"{decision.job.program.target} starts its own workers ({why}), but "
            "it would be started in several places here, and start them in each. Start it in one place, "
            "or say --mode native if it can be one of several workers too."
        )


def _what(decision: Decision) -> str:
    target, script = decision.job.program.target, decision.script
    if decision.job.program.kind == "executable":
        return f"{target} runs on each, with torchrun's variables"
    if script is None:
        return f"{target} runs on each, as --mode native says"
    if script.kind == "spawns":
        return f"{target} starts its own workers ({script.evidence}): started once, and left to it"
    if script.kind == "serial":
        misplaced = " (-n behind it was handed to it: samestep's flags come before)"
        alone = misplaced if decision.size == 1 and "-n" in decision.job.program.args else ""
        return f"{target} is a serial script" + (
            "; its models' calls are split across workers" if decision.steered else alone
        )
    why = f" ({script.evidence})" if script.evidence else ""
    return f"{target} joins its peers itself{why}: runs as under torchrun"
