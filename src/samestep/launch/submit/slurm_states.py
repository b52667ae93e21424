"""Describes the states of a Slurm job in words."""

from collections.abc import Mapping

REASONS: Mapping[str, str] = {
    "None": "until the scheduler has considered it",
    "Resources": "for nodes to become free",
    "Priority": "behind jobs of higher priority",
    "BeginTime": "until its start time; Slurm holds a requeued job back for two minutes",
    "Dependency": "for another job",
    "DependencyNeverSatisfied": "for another job that can no longer end as required; cancel it",
    "JobHeldUser": "because you hold it (scontrol release)",
    "JobHeldAdmin": "because an administrator holds it",
    "Reservation": "for its reservation to begin",
    "ReqNodeNotAvail": "for nodes that are down, reserved or being emptied",
    "NodeDown": "for a node that is down",
    "Licenses": "for a license",
    "PartitionDown": "because its partition accepts no jobs now",
    "PartitionInactive": "because its partition starts no jobs now",
    "PartitionNodeLimit": "for more nodes than its partition allows; it will not start",
    "PartitionTimeLimit": "for more time than its partition allows; it will not start",
    "BadConstraints": "for nodes that do not exist; it will not start",
    "InvalidAccount": "because of its account; it will not start",
    "InvalidQOS": "because of its quality of service; it will not start",
    "JobArrayTaskLimit": "for other tasks of its array",
    "Cleaning": "until its last start is cleaned up",
    "launch_failed_requeued_held": "because it could not be started; an administrator has to release it",
}
"""Why a job waits, by Slurm's code; other codes name a limit of an account or a QOS."""

_STATES: Mapping[str, str] = {
    "CONFIGURING": "its nodes are being prepared",
    "COMPLETING": "is ending",
    "STAGE_OUT": "is ending",
    "SIGNALING": "is being signaled",
    "SUSPENDED": "is suspended",
    "STOPPED": "is stopped",
    "RESIZING": "is being resized",
    "REQUEUED": "is being requeued",
    "REQUEUE_FED": "is being requeued",
    "REQUEUE_HOLD": "is requeued and held (scontrol release)",
    "SPECIAL_EXIT": "is requeued and held (scontrol release)",
    "RESV_DEL_HOLD": "is held because its reservation was deleted (scontrol release)",
}

WITH_REQUEUE = "--requeue lets it continue"
"""The remedy for a job that was ended from outside."""

ENDS: Mapping[str, str] = {
    "COMPLETED": "has ended well",
    "FAILED": "has failed",
    "TIMEOUT": f"was ended at its time limit (raise --time; {WITH_REQUEUE})",
    "CANCELLED": "was cancelled",
    "NODE_FAIL": "was ended because one of its nodes failed",
    "OUT_OF_MEMORY": "was ended because it used more memory than requested (raise --mem)",
    "PREEMPTED": f"was preempted by another job ({WITH_REQUEUE})",
    "BOOT_FAIL": "could not be started: a node did not boot",
    "DEADLINE": "was ended at its deadline",
    "REVOKED": "was moved to another cluster",
}
"""The final states."""


def in_words(state: str, *, reason: str = "", nodes: str = "", restarts: int = 0) -> str:
    """Return the state of a job in words.

    >>> in_words("PENDING", reason="Resources")
    'waits for nodes to become free (Resources)'
    >>> in_words("RUNNING", nodes="node[0-1]", restarts=1)
    'runs on node[0-1], start 2'
    """
    if state == "PENDING":
        plain = reason.partition(",")[0].strip("()") or "None"
        why = REASONS.get(plain) or ("within a limit" if "Max" in plain or "Grp" in plain else "")
        return " ".join(part for part in ("waits", why, f"({plain})" if plain != "None" else "") if part)
    if state == "RUNNING":
        again = f", start {restarts + 1}" if restarts else ""
        return f"runs on {nodes or 'its nodes'}{again}"
    return ENDS.get(state) or _STATES.get(state) or f"is in state {state}"


def exit_code(state: str, slurm_code: str) -> int:
    """Return the exit code of a job that ended, as a shell has it.

    Args:
        state: one of `ENDS`.
        slurm_code: Slurm's ``ExitCode``: the code and the signal.

    >>> exit_code("FAILED", "3:0"), exit_code("CANCELLED", "0:15"), exit_code("TIMEOUT", "0:0")
    (3, 143, 1)
    """
    code, _, number = slurm_code.partition(":")
    if code.isdecimal() and int(code):
        return int(code)
    if number.isdecimal() and int(number):
        return 128 + int(number)
    return 0 if state == "COMPLETED" else 1
