"""Refuses scripts that start their own workers where they would start too many, or cannot be measured."""

from samestep.base.errors import UsageError
from samestep.launch.job import Job, Program
from samestep.launch.plan import Join, Plan
from samestep.launch.source.classify import ScriptKind


def refuse_own_workers(program: Program, script: ScriptKind, *, verb: str) -> None:
    """Refuse a script that starts its own workers in a way in which a measuring verb cannot reach them.

    Raises:
        UsageError: the script starts its own workers, and not by `torch.multiprocessing`.
    """
    if script.kind == "spawns" and not script.has_forkable_workers:
        raise UsageError(
            f"{program.target} starts its own workers, which {verb} cannot measure. If it can run as one "
            "of several workers under a launcher (torchrun, samestep run), give --mode native."
        )


def refuse_several_tasks(program: Program, script: ScriptKind, *, remedy: str) -> None:
    """Refuse to start a script once per task if it starts its own workers each time.

    `remedy` is what to do, as the beginning of a sentence.

    Raises:
        UsageError: the script starts its own workers.
    """
    if script.kind == "spawns":
        raise UsageError(
            f"{program.target} starts its own workers ({script.evidence}), and several tasks or nodes would "
            f"each start them. {remedy}, or give --mode native if it can be one of several workers."
        )


def refuse_several_starts(job: Job, script: ScriptKind | None, plan: Plan, *, tasks_here: int) -> None:
    """Refuse to start a script several times that starts its own workers each time.

    A script that spawns them can be started once on each node, if the number of workers is known. There are
    `tasks_here` tasks of the launcher on this node.

    Raises:
        UsageError: several processes would each start workers, or their number is unknown.
    """
    nodes = None if isinstance(plan, Join) else plan.nodes
    size = plan.place.size if isinstance(plan, Join) else plan.nodes.count
    if script is None or size == 1:
        return
    target, evidence = job.program.target, script.evidence
    can_fork = script.has_forkable_workers and not (script.starts_processes and job.asked() is None)
    if not can_fork or (nodes is None and tasks_here > 1):
        refuse_several_tasks(job.program, script, remedy="Start it in one process")
    if nodes is not None and nodes.least is not None:
        raise UsageError(
            f"{target} spawns its workers ({evidence}), so nodes cannot come and go: give --nnodes "
            f"{nodes.count}."
        )
    if job.asked() is None:
        raise UsageError(
            f"{target} spawns its workers on each node ({evidence}): give their number on all nodes (-n), "
            "and the script's own flags with {local}, {nodes} and {node_rank}: samestep run -n 4 train.py "
            "--gpus {local} --nodes {nodes} --nr {node_rank}."
        )
