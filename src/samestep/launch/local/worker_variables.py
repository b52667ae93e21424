"""Composes the variables of a worker's environment: torchrun's, by torchrun's names."""

from dataclasses import dataclass

from samestep.base.place import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Restart generation of all workers: their first start, or one after a failure.

    Args:
        run_id: name of the run.
        restarts: rounds before this one.
        max_restarts: maximum number of rounds after the first.
        master: host and port of this round's rendezvous.
        store_is_served: whether the launcher already serves a store there; otherwise rank 0 does.
        role: the workers' role.
    """

    run_id: str
    restarts: int
    max_restarts: int
    master: tuple[str, int]
    store_is_served: bool = False
    role: str = "default"


def worker_variables(place: Place, this: Round) -> dict[str, str]:
    """Return torchrun's variables for the worker at `place`, and the one that identifies samestep."""
    host, port = this.master
    return {
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.size),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_size),
        "GROUP_RANK": str(place.node),
        "GROUP_WORLD_SIZE": str(place.nodes),
        "ROLE_NAME": this.role,
        "ROLE_RANK": str(place.rank),
        "ROLE_WORLD_SIZE": str(place.size),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": this.run_id,
        "SAMESTEP_RUN_ID": this.run_id,
        "TORCHELASTIC_RESTART_COUNT": str(this.restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(this.max_restarts),
        "TORCHELASTIC_USE_AGENT_STORE": str(this.store_is_served),
    }


def joined_variables(place: Place, master: tuple[str, int] | None) -> dict[str, str]:
    """Return torchrun's variables for a worker that another launcher started.

    TORCHELASTIC_* are left out: this worker has no agent of torch's kind.
    """
    variables = {
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.size),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_size),
        "GROUP_RANK": str(place.node),
        "GROUP_WORLD_SIZE": str(place.nodes),
    }
    if master is not None:
        variables |= {"MASTER_ADDR": master[0], "MASTER_PORT": str(master[1])}
    return variables
