"""Holds the rank of one process and the sizes of its job."""

from dataclasses import dataclass

from samestep.base.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The ranks of this process and the sizes they count in. Pure data: it opens no socket.

    ===========  ============  =======================================
    index        size          counts
    ===========  ============  =======================================
    rank         size          all processes of the job
    local_rank   local_size    those on this node
    node         nodes         nodes (which may hold uneven numbers)
    ===========  ============  =======================================

    >>> Place(rank=3, size=4, local_rank=1, local_size=2, node=1, nodes=2).describe()
    'rank 3 of 4 (local rank 1 of 2 on node 1 of 2)'
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    node: int = 0
    nodes: int = 1
    launcher: str = "single"

    def __post_init__(self) -> None:
        pairs = (("rank", "size"), ("local_rank", "local_size"), ("node", "nodes"))
        for index, count in pairs:
            i, n = getattr(self, index), getattr(self, count)
            if not 0 <= i < n:
                raise UsageError(f"{index}={i} is not within 0 .. {count}-1 = {n - 1} ({self!r})")
        if self.local_size > self.size or self.nodes > self.size:
            raise UsageError(
                f"a node cannot hold more ranks, nor a job more nodes, than there are ranks ({self!r})"
            )

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which prints and writes for the job."""
        return self.rank == 0

    def describe(self) -> str:
        """Return the ranks and sizes in words, counted from zero as launchers do."""
        return (
            f"rank {self.rank} of {self.size} (local rank {self.local_rank} of {self.local_size} "
            f"on node {self.node} of {self.nodes})"
        )
