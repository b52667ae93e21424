"""Averages all gradients through shared memory at the end of backward."""

from dataclasses import replace

from samestep.base.errors import UsageError
from samestep.parallel.gradients.bucketed import Bucketed
from samestep.parallel.gradients.synchronizer import SyncConfig
from samestep.ranks.collectives.shared_memory import PIECE
from samestep.ranks.collectives.shared_memory_world import OneHostWorld


class Flat(Bucketed):
    """Communication at the end of backward, for ranks that compute on the cores of one host.

    ::

        backward       layer 4 . layer 3 . layer 2 . layer 1 |
        communication                                        | small gradients in buckets, large ones in place

    Nothing is sent early: communication uses the same cores as backward, and each handover within backward
    makes ranks wait for each other's random delays. A bucket fits into the cache.
    """

    in_place = True

    def __init__(self, config: SyncConfig) -> None:
        if not isinstance(config.world, OneHostWorld):
            raise UsageError(
                "sync='flat' needs ranks that are Linux processes of one host and compute on its CPUs. "
                "Use sync='bucketed', or 'auto', which is flat where possible."
            )
        super().__init__(replace(config, may_overlap=False, bucket_bytes=min(config.bucket_bytes, PIECE)))

    def _gradient_ready(self, index: int) -> None:
        """Send nothing before the end of backward."""
