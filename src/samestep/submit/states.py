"""What Slurm says about a job, in words."""

from collections.abc import Mapping

REASONS: Mapping[str, str] = {
    "None": "until the scheduler has looked at it",
    "Resources": "for nodes to become free",
    "Priority": "behind jobs of higher priority",
    "BeginTime": "until its start time; Slurm holds a job that was queued again back for two minutes",
    "Dependency": "for another job",
    "DependencyNeverSatisfied": "for another job that will never be as it must: cancel it",
    "JobHeldUser": "because you hold it (scontrol release)",
    "JobHeldAdmin": "because an administrator holds it",
    "Reservation": "for its reservation to begin",
    "ReqNodeNotAvail": "for nodes that are down, reserved or being emptied",
    "NodeDown": "for a node that is down",
    "Licenses": "for a licence",
    "PartitionDown": "because its partition takes no jobs now",
    "PartitionInactive": "because its partition starts no jobs now",
    "PartitionNodeLimit": "for more nodes than its partition gives: it will not start",
    "PartitionTimeLimit": "for more time than its partition gives: it will not start",
    "BadConstraints": "for nodes that there are not: it will not start",
    "InvalidAccount": "because of its account: it will not start",
    "InvalidQOS": "because of its quality of service: it will not start",
    "JobArrayTaskLimit": "for other tasks of its array",
    "Cleaning": "for what is left of its last start",
    "launch_failed_requeued_held": "because it could not be started; an administrator has to release it",
}
"""Why a job waits; others are limits of an account or a QOS, whose names say which."""

_STATES: Mapping[str, str] = {
    "CONFIGURING": "its nodes are being prepared",
    "COMPLETING": "is ending",
    "STAGE_OUT": "is ending",
    "SIGNALING": "is being signalled",
    "SUSPENDED": "is suspended",
    "STOPPED": "is stopped",
    "RESIZING": "changes its size",
    "REQUEUED": "is being queued again",
    "REQUEUE_FED": "is being queued again",
    "REQUEUE_HOLD": "is held back after being queued again (scontrol release)",
    "SPECIAL_EXIT": "is held back after being queued again (scontrol release)",
    "RESV_DEL_HOLD": "is held back, its reservation is gone (scontrol release)",
}

ENDS: Mapping[str, str] = {
    "COMPLETED": "has ended well",
    "FAILED": "has failed",
    "TIMEOUT": "was ended at its time limit (--time gives it more; --requeue lets it go on)",
    "CANCELLED": "was cancelled",
    "NODE_FAIL": "was ended: one of its nodes failed",
    "OUT_OF_MEMORY": "was ended: it took more memory than it asked for (--mem)",
    "PREEMPTED": "was ended for another job (--requeue lets it go on)",
    "BOOT_FAIL": "could not be started: a node did not boot",
    "DEADLINE": "was ended at its deadline",
    "REVOKED": "was given to another cluster",
}
"""The states that no job leaves."""


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


def exit_code(state: str, told: str) -> int:
    """Return what a shell would say of a job that ended.

    Args:
        state: one of `ENDS`.
        told: Slurm's ``ExitCode``, the code and the signal.

    >>> exit_code("FAILED", "3:0"), exit_code("CANCELLED", "0:15"), exit_code("TIMEOUT", "0:0")
    (3, 143, 1)
    """
    code, _, number = told.partition(":")
    if code.isdecimal() and int(code):
        return int(code)
    if number.isdecimal() and int(number):
        return 128 + int(number)
    return 0 if state == "COMPLETED" else 1
