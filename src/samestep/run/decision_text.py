"""Describes a decision in words, for the banner and for ``--dry-run``."""

import sys

from samestep.base.units import counted
from samestep.launch.plan import Join
from samestep.launchers.binding import in_words as binding_words
from samestep.ranks.world.banner import threads_text
from samestep.run.decision import Decision


def banner(decision: Decision) -> list[str]:
    """Return the lines that are printed before a run."""
    if decision.starts_own_workers or decision.is_settled_by_join:
        words = binding_words(decision.bind)
        return [*decision.detected.notes, *([f"workers are {words}"] if words else []), _script(decision)]
    return [headline(decision), *decision.detected.notes, _script(decision)]


def headline(decision: Decision) -> str:
    """Return the line with the number of workers and their threads."""
    threads = decision.threads
    each = "" if threads is None else f", {threads_text(threads, each=decision.size > 1)}"
    each += f", {words}" if (words := binding_words(decision.bind)) else ""
    if isinstance(decision.plan, Join):
        where = f"started by {decision.detected.launcher}"
    elif decision.plan.nodes.count > 1:
        nodes = decision.plan.nodes
        count = f"{nodes.count}" if nodes.least is None else f"at most {nodes.count}"
        where = f"= {count} nodes x {decision.plan.local}"
    else:
        where = "on this node"
    return f"{counted(decision.size, 'worker')} {where}{each}"


def dry_run_lines(decision: Decision) -> list[str]:
    """Return the whole decision as lines."""
    job = decision.job
    lines = [decision.plan.describe(), f"program: {' '.join(job.program.command(sys.executable))}"]
    if decision.threads is not None:
        lines.append(f"threads: {decision.threads.count} each ({decision.threads.reason})")
    elif decision.is_settled_by_join:
        lines.append("threads: set by samestep.join, from the cores that the workers share")
    lines.append(f"script: {_script(decision)}")
    if decision.bind != "none":
        lines.append(f"bind: {decision.bind}")
    if job.max_restarts:
        lines.append(f"restarts: up to {job.max_restarts}, each with a fresh store and port")
    if job.logs.folder is not None:
        lines.append(f"logs: {job.logs.folder / job.run_id}/attempt_K/LOCAL_RANK/{{stdout,stderr}}.log")
    return lines


def _script(decision: Decision) -> str:
    """Return what the script is and how it runs."""
    target, script = decision.job.program.target, decision.script
    if decision.job.program.kind == "executable":
        return f"{target} runs on each worker, with torchrun's variables"
    if script is None:
        return f"{target} runs on each worker as it is (--mode native)"
    if script.kind == "spawns":
        return f"{target} starts its own workers ({script.evidence}): it is started once"
    if script.kind == "serial":
        if decision.is_replicated:
            return f"{target} is a serial script; its models' calls are split across workers"
        misplaced = decision.size == 1 and "-n" in decision.job.program.args
        note = " (`-n` after the script name was passed to the script; put it before)" if misplaced else ""
        return f"{target} is a serial script{note}"
    why = f" ({script.evidence})" if script.evidence else ""
    return f"{target} joins its peers itself{why}: runs as under torchrun"
