"""Gradients in one go through the memory that all ranks share, once backward is through."""

from dataclasses import replace

from samestep.base.errors import UsageError
from samestep.collectives.one_host import OneHostWorld
from samestep.collectives.shared_memory import PIECE
from samestep.replicas.bucketed import Bucketed
from samestep.replicas.synchroniser import Job


class Flat(Bucketed):
    """One exchange at the end of backward, for ranks of one host that compute on its processors.

    ::

        backward   layer 4 . layer 3 . layer 2 . layer 1 |
        exchange                                         | small gradients by cachefuls, large ones in place

    Nothing leaves early: the processor that would carry it is the one that computes, and each rendezvous
    within backward would make ranks wait for each other where they differ by chance.
    """

    in_place = True

    def __init__(self, job: Job) -> None:
        if not isinstance(job.world, OneHostWorld):
            raise UsageError(
                "sync='flat' needs ranks that share the memory of one host and compute on its processors, as "
                "processes of Linux. Use sync='bucketed', or 'auto', which is flat where that can be."
            )
        super().__init__(replace(job, may_overlap=False, bucket_bytes=min(job.bucket_bytes, PIECE)))

    def _gradient_ready(self, index: int) -> None:
        """Wait for the end, whichever gradients are there by then."""
