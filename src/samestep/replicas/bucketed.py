"""Gradients leave in buckets while backward still computes: the default."""

import threading

import torch

from samestep.base.errors import OutOfStep
from samestep.replicas.layout import lay_out
from samestep.replicas.synchroniser import Job, Synchroniser


class Bucketed(Synchroniser):
    """Asynchronous all-reduces of buckets, overlapped with backward.

    ::

        backward   layer 4 . layer 3 . layer 2 . layer 1 |
        exchange             [bucket 0] [bucket 1]       | [bucket 2]  then the averages are handed out

    Ranks must send in one order, whichever parameters each of them uses. So a bucket leaves early only when
    it is full and all before it have left; a bucket that carries running statistics waits for the end; and of
    several models only the first to be replicated sends early.

    Where graphs are nested and share parameters (a block under reentrant checkpointing, used twice), a
    gradient can change after its bucket has left. The first exchange sends nothing early and finds out, for
    all ranks, whether that happens. Should it begin later, those buckets are sent again, which is right
    because averaging starts from ``p.grad`` anew, and from then on nothing leaves early.
    """

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._lock = threading.Lock()  # gradients of several devices arrive on several threads
        self._plan()
        self._begin()

    def _plan(self) -> None:
        laid = lay_out(self._job)
        self._buckets = [one.bucket for one in laid]
        self._members = [one.indices for one in laid]
        self._row = {index: row for row, indices in enumerate(self._members) for index in indices}
        self._frozen = {
            name: parameter for name, parameter in self._job.parameters.items() if not parameter.requires_grad
        }
        self._overlap: bool | None = None if self._job.may_overlap else False  # None: not known yet

    def _begin(self) -> None:
        for bucket in self._buckets:
            bucket.settle()  # left by a backward that ended in an error
        self._awaited = [set(indices) for indices in self._members]
        self._num_sent = 0
        self._repeated = False
        self._stale: set[int] = set()

    def _gradient_ready(self, index: int) -> None:
        with self._lock:
            row = self._row.get(index)
            if row is None:
                return  # frozen when the buckets were laid out; seen to at the end
            if index in self._awaited[row]:
                self._awaited[row].remove(index)
            else:
                self._repeated = True
                if row < self._num_sent:
                    self._stale.add(row)
            if self._overlap and self._leads:
                self._send_full()

    def _send_full(self) -> None:
        with torch.no_grad():
            while self._num_sent < len(self._buckets):
                bucket = self._buckets[self._num_sent]
                if self._awaited[self._num_sent] or bucket.has_passenger:
                    return
                bucket.send()
                self._num_sent += 1

    def _exchange(self) -> None:
        for bucket in self._buckets[self._num_sent :]:
            bucket.send()
        for row in sorted(self._stale):
            self._buckets[row].wait()
            self._buckets[row].send()
        for bucket in self._buckets:
            bucket.wait()
            bucket.unload()
        self._num_sent = 0
        if self._overlap is None:
            self._overlap = self._nobody_repeats()
        elif self._stale:
            self._overlap = False
        if any(parameter.requires_grad for parameter in self._frozen.values()):
            self._replan()

    def _nobody_repeats(self) -> bool:
        repeated = torch.tensor([float(self._repeated)], device=self._job.world.device)
        self._job.world.all_reduce(repeated, op="max")
        return not repeated.item()

    def _replan(self) -> None:
        """Take in the parameters that have been unfrozen; then exchange once more, with them."""
        unfrozen = [name for name, parameter in self._frozen.items() if parameter.requires_grad]
        everywhere = self._job.world.all_gather_objects(unfrozen)
        for rank, theirs in enumerate(everywhere):
            if theirs != unfrozen:
                raise OutOfStep(
                    f"parameters were unfrozen on this rank ({', '.join(unfrozen)}) that are not the ones "
                    f"unfrozen on rank {rank} ({', '.join(theirs) or 'none'}). Change requires_grad on "
                    "all ranks at the same step."
                )
        self._plan()
        self._begin()
        self._exchange()
