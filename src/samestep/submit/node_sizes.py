"""Computes and checks the number of workers and GPUs of each node of a job."""

from dataclasses import dataclass

from samestep.base.errors import UsageError
from samestep.base.units import MOST_WORKERS


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSizes:
    """The size of a job.

    Raises:
        UsageError: a number is too small or too large, or a worker has no GPU.
    """

    nodes: int  # number of nodes, or pods
    per_node: int  # workers on each of them
    gpus_per_node: int = 0  # GPUs of each of them; 0 for none

    def __post_init__(self) -> None:
        for flag, value, least in (
            ("--nodes", self.nodes, 1),
            ("--nproc-per-node", self.per_node, 1),
            ("--gpus-per-node", self.gpus_per_node, 0),
        ):
            if value < least:
                raise UsageError(f"{flag} is {value}; give at least {least}.")
            if value > MOST_WORKERS:
                raise UsageError(f"{flag} is {value}; give at most {MOST_WORKERS:,}.")
        if 0 < self.gpus_per_node < self.per_node:
            raise UsageError(
                f"{self.per_node} workers on each node need a GPU each, but --gpus-per-node is "
                f"{self.gpus_per_node}; ask for more GPUs or fewer workers."
            )

    @property
    def workers(self) -> int:
        """Number of workers on all nodes."""
        return self.nodes * self.per_node


def per_node(
    *, nodes: int, gpus_per_node: int, workers: int | None, nproc_per_node: int | None, in_command: int | None
) -> int:
    """Return the number of workers on each node.

    Each of the last three is a number that was given, or None; `in_command` is among the arguments of the
    job's command. The default is a worker for each GPU, at least one.

    Raises:
        UsageError: the numbers contradict each other, or the workers cannot be divided evenly.
    """
    if workers is not None and in_command is not None and workers != in_command:
        raise UsageError(f"-n {workers} and -n {in_command} contradict each other; give only one of them.")
    total = in_command if workers is None else workers
    if total is None:
        return max(gpus_per_node, 1) if nproc_per_node is None else nproc_per_node
    if nproc_per_node is not None and nproc_per_node * nodes != total:
        raise UsageError(
            f"-n is {total}, but --nproc-per-node {nproc_per_node} on {nodes} node(s) is "
            f"{nproc_per_node * nodes} workers; give only one of them."
        )
    if total < 1:
        raise UsageError(f"-n {total}: give at least 1 worker.")
    if nodes < 1 or total % nodes:
        raise UsageError(
            f"-n {total} workers cannot be divided evenly by --nodes {nodes}; give a multiple of the nodes."
        )
    return total // nodes
