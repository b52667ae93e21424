"""Detects which launcher started this process, and its rank and the number of ranks, from variables.

Launchers nest (torchrun inside srun, mpirun inside sbatch). The rows of `launchers` are ordered
innermost first, and the first one found decides. Values that contradict each other are an error only
within one launcher: the variables of an outer one describe its own tasks, not this rank.
"""

from dataclasses import dataclass

from samestep.base.env import Environment, integer
from samestep.base.errors import DetectionError
from samestep.base.place import Place
from samestep.base.units import whole
from samestep.launchers.lost_environment import refuse_half_set
from samestep.launchers.read_variables import Claim, claim_of, place_of
from samestep.launchers.registry import BY_NAME, ENVIRONMENT, LAUNCHERS, SLURM, Launcher, is_task_step

UNLAUNCHED = "single"
"""Launcher's name if none was found."""

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Detected:
    """Result of the detection: launcher and place of this process.

    Args:
        launcher: name of the row that decided; ``single`` if there is no launcher.
        evidence: the variables that decided and their values, in the order they were read.
        outer: launchers that were found too, but only started this process's launcher.
        assumed: fields of `place` that no variable gives and that follow from the others.
        master_addr: host of rank 0, as given.
        master_port: port on it, as given.
        job: the launcher's name for this job, unique to it; empty if it has no name.
        hosts: node list of the job in hostlist notation; empty if the launcher gives none.
        notes: remarks for the user, in full sentences.
    """

    place: Place
    launcher: str = UNLAUNCHED
    evidence: tuple[tuple[str, str], ...] = ()
    outer: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    master_addr: str | None = None
    master_port: int | None = None
    job: str = ""
    hosts: str = ""
    notes: tuple[str, ...] = ()

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
    found = [launcher for launcher in LAUNCHERS if _found(launcher, env)]
    if not found:
        refuse_half_set(env)
        return Detected(place=Place(), notes=_notes_when_single(env))
    claim = _innermost(found, env)
    launcher = claim.launcher
    address, port = _master(env)
    one_host = address in LOOPBACK
    place, assumed = place_of(claim, one_host=one_host)
    master = [(name, env[name]) for name in ("MASTER_ADDR", "MASTER_PORT") if env.get(name)]
    return Detected(
        place=place,
        launcher=launcher.name,
        evidence=(*claim.evidence, *master),
        outer=tuple(other.name for other in found if _is_outer(other, claim, env)),
        assumed=assumed,
        master_addr=address,
        master_port=port,
        job=_job(launcher, env),
        hosts=env.get(launcher.hosts, ""),
        notes=_notes_on_assumed(place, assumed),
    )


def given(place: Place, env: Environment) -> Detected:
    """Return the caller's `place`, which overrides every variable, with the environment's master."""
    address, port = _master(env)
    return Detected(place=place, launcher="arguments", master_addr=address, master_port=port)


def _found(launcher: Launcher, env: Environment) -> bool:
    if not any(all(env.get(name) for name in names) for names in launcher.proof):
        return False
    if len({env.get(name) for name in launcher.equal}) > 1:
        return False
    return launcher is not SLURM or is_task_step(env["SLURM_STEP_ID"])


def _innermost(found: list[Launcher], env: Environment) -> Claim:
    """Return the claim of the first launcher found, or of another one that sets its variables.

    srun can set PMI's or PMIx's variables next to its own. The same rank and number of ranks
    mean that it is srun itself; if they differ, an mpirun runs inside the step.
    """
    first = claim_of(found[0], env)
    for name in first.launcher.also_set_by:
        if BY_NAME[name] not in found:
            continue
        setter = claim_of(BY_NAME[name], env)
        if first.values.get("rank") == setter.values.get("rank") and (
            first.values.get("size") in (None, setter.values.get("size"))
        ):
            return setter
    return first


def _is_outer(other: Launcher, deciding: Claim, env: Environment) -> bool:
    winner = deciding.launcher
    if other is winner or other.name in winner.also_sets or winner.name in other.also_set_by:
        return False
    if LAUNCHERS.index(other) < LAUNCHERS.index(winner):
        return False
    texts = [next(filter(None, map(env.get, getattr(other, field))), None) for field in ("rank", "size")]
    if other is ENVIRONMENT and texts == [str(deciding.values.get(field)) for field in ("rank", "size")]:
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
    if "local_rank" not in assumed or place.size == 1:
        return ()
    if place.local_size == place.size:
        layout = "all ranks are taken to be on this host (MASTER_ADDR is this host)"
    else:
        layout = "each rank is taken to have a host of its own"
    return (f"No variable gives the ranks of a host: {layout}. Set LOCAL_RANK and LOCAL_WORLD_SIZE if not.",)
