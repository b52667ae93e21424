"""Detects which launcher started this process, and its rank and the number of ranks, from variables.

Launchers nest (torchrun inside srun, mpirun inside sbatch). The rows of `registry` are ordered innermost
first, and the first one that is set decides. Values that contradict each other are an error only within one
launcher: the variables of an outer one describe its own tasks, not this rank.

::

    variables  ->  Claim: the fields that they give  ->  Place, and the fields that were inferred
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from samestep.base.env import Environment, integer
from samestep.base.errors import DetectionError
from samestep.base.place import Place
from samestep.base.units import whole
from samestep.launchers.hostlist import tasks_per_node
from samestep.launchers.registry import (
    BY_NAME,
    ENVIRONMENT,
    FIELDS,
    KUBERNETES,
    LAUNCHERS,
    SLURM,
    UNKNOWN,
    Launcher,
    is_task_step,
)

_PAIRS = (("rank", "size"), ("local_rank", "local_size"), ("node", "nodes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Variables of one launcher, as read."""

    launcher: Launcher
    values: Mapping[str, int]  # the fields of a Place that the variables give, by name
    named: Mapping[str, str]  # the variable each field was read from
    layout: tuple[int, ...]  # ranks on each node; empty if the launcher does not give it
    evidence: tuple[tuple[str, str], ...]  # all variables that were set, with their values

    def shown(self) -> str:
        """Return the evidence on one line, for messages."""
        return " ".join(f"{name}={value}" for name, value in self.evidence)


def claim_of(launcher: Launcher, env: Environment) -> Claim:
    """Return the variables of `launcher` in `env`.

    Raises:
        DetectionError: a variable has a malformed value.
    """
    values: dict[str, int] = {}
    named: dict[str, str] = {}
    for field in FIELDS:
        for name in getattr(launcher, field):
            value = integer(env, name)
            if value is not None:
                values[field], named[field] = value, name
                break
    layout = env.get(launcher.layout, "")
    proof = next((group for group in launcher.proof if all(env.get(name) for name in group)), ())
    more = [name for name in (launcher.layout, launcher.hosts, *launcher.job, *proof) if env.get(name)]
    names = dict.fromkeys([*named.values(), *more])
    return Claim(
        launcher=launcher,
        values=values,
        named=named,
        layout=tuple(tasks_per_node(layout)) if layout else (),
        evidence=tuple((name, env[name]) for name in names),
    )


def place_of(claim: Claim, *, one_host: bool) -> tuple[Place, tuple[str, ...]]:
    """Return the place that a claim gives, and those of its fields that were inferred.

    With `one_host`, the rendezvous is on loopback, so that all ranks are on this host.

    Raises:
        DetectionError: the claim contradicts itself, or lacks a value that cannot be inferred.
    """
    for field in ("rank", "size"):
        if field not in claim.values:
            raise _half_set(claim, field)
    _check_pairs(claim, claim.values)
    known = {**claim.values, **_from_layout(claim)}
    full = dict(known)
    full["local_rank"], full["local_size"] = _locals(claim, known, one_host=one_host)
    size, local_size = full["size"], full["local_size"]
    full.setdefault("nodes", ceil(size / local_size))
    # Launchers fill node after node by default; join() corrects this from the host names.
    full.setdefault("node", min(full["rank"] // local_size, full["nodes"] - 1))
    _check_pairs(claim, full)
    if (full["nodes"] == 1) != (local_size == size) or local_size > size or full["nodes"] > size:
        raise _contradiction(
            claim, f"{size} ranks cannot be {local_size} on this node and spread over {full['nodes']} node(s)"
        )
    assumed = tuple(field for field in FIELDS if field not in known and size > 1)
    if local_size == size:
        assumed = tuple(field for field in assumed if field not in {"node", "nodes"})  # one node: no guess
    return Place(**full, launcher=claim.launcher.name), assumed


def _check_pairs(claim: Claim, values: Mapping[str, int]) -> None:
    for index, count in _PAIRS:
        if index in values and count in values and not 0 <= values[index] < values[count]:
            left, right = (f"{claim.named.get(field, field)}={values[field]}" for field in (index, count))
            raise _contradiction(claim, f"{left} does not go with {right} (counted from 0)")


def _from_layout(claim: Claim) -> dict[str, int]:
    """Return the fields that the list of ranks per node gives, after checking it against the others."""
    if not claim.layout:
        return {}
    values, counts = claim.values, claim.layout
    name = claim.launcher.layout
    if sum(counts) != values["size"]:
        raise _contradiction(
            claim, f"{name} adds up to {sum(counts)} ranks, but {claim.named['size']}={values['size']}"
        )
    if values.get("nodes", len(counts)) != len(counts):
        raise _contradiction(
            claim, f"{name} lists {len(counts)} node(s), but {claim.named['nodes']}={values['nodes']}"
        )
    node = values.get("node", 0 if len(counts) == 1 else len(counts))
    if node >= len(counts):
        raise _contradiction(claim, f"{name} lists {len(counts)} node(s), which one is this one?")
    local_size = counts[node]
    if values.get("local_rank", 0) >= local_size:
        raise _contradiction(
            claim,
            f"{claim.named['local_rank']}={values['local_rank']}, but {name} puts {local_size} "
            f"rank(s) on node {node}",
        )
    return {"nodes": len(counts), "node": node, "local_size": local_size}


def _locals(claim: Claim, known: Mapping[str, int], *, one_host: bool) -> tuple[int, int]:
    """Return local rank and local size, given or inferred."""
    rank, size = known["rank"], known["size"]
    local_rank, local_size = known.get("local_rank"), known.get("local_size")
    if local_rank is not None and local_size is not None:
        return local_rank, local_size
    if size == 1 or known.get("nodes") == 1 or one_host:
        return (rank if local_rank is None else local_rank, local_size or size)
    names_no_size = not (claim.launcher.local_size or claim.launcher.layout)
    if names_no_size and local_rank is not None and "nodes" in known:
        # Even shares, as far as this rank fits; join() corrects them from the host names.
        return local_rank, max(ceil(size / known["nodes"]), local_rank + 1)
    if claim.launcher.silent_means_alone and local_rank is None and local_size is None:
        return 0, 1
    raise _half_set(claim, "local_rank" if local_rank is None else "local_size")


def _half_set(claim: Claim, field: str) -> DetectionError:
    missing = " or ".join(getattr(claim.launcher, field)) or claim.launcher.layout or field
    return DetectionError(
        f"{missing} is not set, but {claim.shown()} is (launcher: {claim.launcher.name}). Set it on every "
        "rank, or unset the others to run as a single process."
    )


def _contradiction(claim: Claim, problem: str) -> DetectionError:
    return DetectionError(
        f"{problem}; found {claim.shown()} (launcher: {claim.launcher.name}). Correct the values, or "
        "unset them and start the ranks with samestep run, torchrun, srun or mpirun."
    )


UNLAUNCHED = "single"
"""Launcher's name if none was found."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
_OF_A_STEP = ("SLURM_STEP_", "SLURM_SRUN_COMM_", "SLURM_LAUNCH_NODE_")
"""Prefixes of the variables that srun sets for its tasks only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Detected:
    """Result of the detection: launcher and place of this process."""

    place: Place
    launcher: str = UNLAUNCHED  # name of the row that decided; ``single`` if there is no launcher
    evidence: tuple[tuple[str, str], ...] = ()  # variables that decided, and their values
    outer: tuple[str, ...] = ()  # other launchers, which only started this process's
    assumed: tuple[str, ...] = ()  # fields of `place` that no variable gives and that follow from the others
    master_addr: str | None = None  # host of rank 0, as given
    master_port: int | None = None  # port on it, as given
    job: str = ""  # the launcher's name for this job, unique to it; empty if it has no name
    hosts: str = ""  # node list of the job in hostlist notation; empty if the launcher gives none
    notes: tuple[str, ...] = ()  # remarks for the user, in full sentences

    @property
    def master(self) -> tuple[str, int] | None:
        """Address and port of the rendezvous, if both were given."""
        if self.master_addr is None or self.master_port is None:
            return None
        return self.master_addr, self.master_port


def detect(env: Environment) -> Detected:
    """Return the place of this process in its job, with the variables that give it.

    Raises:
        DetectionError: the deciding launcher's variables contradict each other or lack something.
    """
    launchers = [launcher for launcher in LAUNCHERS if _is_set(launcher, env)]
    if not launchers:
        refuse_incomplete(env)
        return Detected(place=Place(), notes=_notes_when_single(env))
    claim = _innermost(launchers, env)
    launcher = claim.launcher
    address, port = _master(env)
    one_host = address in LOOPBACK
    place, assumed = place_of(claim, one_host=one_host)
    master = [(name, env[name]) for name in ("MASTER_ADDR", "MASTER_PORT") if env.get(name)]
    return Detected(
        place=place,
        launcher=launcher.name,
        evidence=(*claim.evidence, *master),
        outer=tuple(outer.name for outer in launchers if _is_outer(outer, claim, env)),
        assumed=assumed,
        master_addr=address,
        master_port=port,
        job=_job(launcher, env),
        hosts=env.get(launcher.hosts, ""),
        notes=_notes_on_assumed(place, assumed),
    )


def from_arguments(place: Place, env: Environment) -> Detected:
    """Return the caller's `place`, which overrides every variable, with the environment's master."""
    address, port = _master(env)
    return Detected(place=place, launcher="arguments", master_addr=address, master_port=port)


def refuse_incomplete(env: Environment) -> None:
    """Refuse variables which show that this is one process of several, but not its rank; none was found.

    Raises:
        DetectionError: there are such variables; the message has them and the remedy.
    """
    for launcher in reversed(LAUNCHERS):  # the plainer row of two that share variables
        values = claim_of(launcher, env).values
        several = values.get("size", 1) > 1 or values.get("rank", 0) > 0
        if launcher is KUBERNETES:  # pods of an Indexed Job without a number of ranks are separate runs
            continue
        if several and not (launcher is SLURM and is_job_script(env)):
            _refuse_incomplete(launcher, env)
    if env.get("SLURM_PROCID") and not env.get("SLURM_STEP_ID") and not _is_batch_script(env):
        _refuse_incomplete(SLURM, env)  # task 0 of several would go on alone, the others refused
    for rank, size in UNKNOWN:
        if env.get(rank) and (not size or (integer(env, size) or 1) > 1):
            variables = ", ".join(f"{name}={env[name]}" for name in (size, rank) if name)
            raise DetectionError(
                f"{variables}: a launcher that samestep does not support started this process, as one of "
                "several, and each would repeat the same run. Export RANK, WORLD_SIZE, LOCAL_RANK, "
                "LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT from its variables, or unset these for a "
                "single process."
            )


def _is_set(launcher: Launcher, env: Environment) -> bool:
    if not any(all(env.get(name) for name in names) for names in launcher.proof):
        return False
    if len({env.get(name) for name in launcher.equal}) > 1:
        return False
    return launcher is not SLURM or is_task_step(env["SLURM_STEP_ID"])


def _innermost(launchers: list[Launcher], env: Environment) -> Claim:
    """Return the claim of the first launcher found, or of another one that sets its variables.

    srun can set PMI's or PMIx's variables next to its own. The same rank and number of ranks
    mean that it is srun itself; if they differ, an mpirun runs inside the step.
    """
    first = claim_of(launchers[0], env)
    for name in first.launcher.also_set_by:
        if BY_NAME[name] not in launchers:
            continue
        setter = claim_of(BY_NAME[name], env)
        if first.values.get("rank") == setter.values.get("rank") and (
            first.values.get("size") in (None, setter.values.get("size"))
        ):
            return setter
    return first


def _is_outer(outer: Launcher, deciding: Claim, env: Environment) -> bool:
    winner = deciding.launcher
    if outer is winner or outer.name in winner.also_sets or winner.name in outer.also_set_by:
        return False
    if LAUNCHERS.index(outer) < LAUNCHERS.index(winner):
        return False
    texts = [next(filter(None, map(env.get, getattr(outer, field))), None) for field in ("rank", "size")]
    if outer is ENVIRONMENT and texts == [str(deciding.values.get(field)) for field in ("rank", "size")]:
        return False  # a script or `samestep run` has set torchrun's variables to the same values
    return all(texts)


def _job(launcher: Launcher, env: Environment) -> str:
    parts = [env.get(name, "") for name in launcher.job]
    return ".".join(parts) if all(parts) else ""


def _master(env: Environment) -> tuple[str | None, int | None]:
    port = integer(env, "MASTER_PORT")
    if port is not None and not 0 < port < 2**16:
        raise DetectionError(f"MASTER_PORT={port} is not a port. Use a free one between 1024 and 65535.")
    return env.get("MASTER_ADDR") or None, port


def _notes_when_single(env: Environment) -> tuple[str, ...]:
    tasks = env.get("SLURM_NTASKS", "")
    if not env.get("SLURM_JOB_ID") or (whole(tasks) or 1) < 2:
        return ()
    note = (
        f"Slurm job {env['SLURM_JOB_ID']} has room for {tasks} tasks, but this is not one of them: it is one "
        f"process, in the job's script or shell. Put `srun` before the command to start {tasks} workers."
    )
    return (note,)


def _notes_on_assumed(place: Place, assumed: tuple[str, ...]) -> tuple[str, ...]:
    if "local_rank" not in assumed or "node" not in assumed or place.size == 1:
        return ()
    if place.local_size == place.size:
        layout = "all ranks are taken to be on this host (MASTER_ADDR is this host)"
    else:
        layout = "each rank is taken to have a host of its own"
    return (f"No variable gives the ranks of a host: {layout}. Set LOCAL_RANK and LOCAL_WORLD_SIZE if not.",)


def is_job_script(env: Environment) -> bool:
    """Return whether this is the script of a Slurm job or a shell in it, which is one process."""
    step = env.get("SLURM_STEP_ID", "")
    return bool(step) and not is_task_step(step)


def _is_batch_script(env: Environment) -> bool:
    """Return whether this is a job's batch script: Slurm gives it a task ID, its node and job, but no step.

    A task whose container lets some variables through only lacks others too, or has more of its step's.
    """
    if integer(env, "SLURM_NTASKS") == 1:
        return True
    if not env.get("SLURM_JOB_ID") or not env.get("SLURMD_NODENAME"):
        return False
    return not any(name.startswith(_OF_A_STEP) for name in env)


def _refuse_incomplete(launcher: Launcher, env: Environment) -> None:
    claim = claim_of(launcher, env)
    lacking = next(name for group in launcher.proof for name in group if not env.get(name))
    raise DetectionError(
        f"{lacking} is not set, but {claim.shown()} is (launcher: {launcher.name}): this is one of "
        "several processes, but its rank is unknown. Let all of the launcher's variables through, or unset "
        "these for a single process."
    )
