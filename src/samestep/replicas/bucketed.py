"""Gradients leave in buckets while backward still computes: the default."""

import threading

import torch

from samestep.base.errors import OutOfStep
from samestep.replicas.compress import message_bytes
from samestep.replicas.layout import lay_out
from samestep.replicas.synchroniser import Job, Synchroniser

PATIENCE = 10
"""Exchanges in which a parameter stays frozen before its bucket is laid out without it."""


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

    Buckets are laid out anew, by all ranks at once, where parameters have been unfrozen, and where some have
    stayed frozen for a while, whose bucket can never be full.
    """

    in_place = False
    """Whether large gradients are exchanged where they lie."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._lock = threading.Lock()  # gradients of several devices arrive on several threads
        self._parameters = list(job.parameters.values())
        self._plan()
        self._begin()

    def _plan(self) -> None:
        laid = lay_out(self._job, in_place=self.in_place)
        self._buckets = [one.bucket for one in laid]
        self._members = [one.indices for one in laid]
        self.gradient_bytes = message_bytes(self._parameters, self._job.compress)
        self._row = {index: row for row, indices in enumerate(self._members) for index in indices}
        self._frozen = {
            name: parameter for name, parameter in self._job.parameters.items() if not parameter.requires_grad
        }
        self._idle: list[int] = []
        self._num_idle = 0
        self._overlap: bool | None = None if self._job.may_overlap else False  # None: not known yet

    def _begin(self) -> None:
        for bucket in self._buckets:
            bucket.settle()  # left by a backward that ended in an error
        self._awaited = [set(indices) for indices in self._members]
        self._num_sent = 0
        self._repeated = False
        self._steady = True
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
                self._send(self._num_sent)
                self._num_sent += 1

    def _send(self, row: int) -> None:
        """Send a bucket; the last one tells whether this rank is content with its plan."""
        if row == len(self._buckets) - 1:
            self._steady = not self._unfrozen() and self._num_idle < PATIENCE
            self._buckets[row].send(steady=self._steady)
        else:
            self._buckets[row].send()

    def _exchange(self) -> None:
        for row in range(self._num_sent, len(self._buckets)):
            self._send(row)
        for row in sorted(self._stale):
            self._buckets[row].wait()
            self._send(row)
        for bucket in self._buckets:
            bucket.wait()
            bucket.unload()
        self._num_sent = 0
        if self._overlap is None:
            self._overlap = self._nobody_repeats()
        elif self._stale:
            self._overlap = False
        self._count_idle()
        if not self._steady:
            self._replan()

    def _count_idle(self) -> None:
        """Count the exchanges in which the same parameters of buckets were frozen."""
        idle = [index for index in self._row if not self._parameters[index].requires_grad]
        self._num_idle = self._num_idle + 1 if idle and idle == self._idle else 0
        self._idle = idle

    def _unfrozen(self) -> list[str]:
        return [name for name, parameter in self._frozen.items() if parameter.requires_grad]

    def _nobody_repeats(self) -> bool:
        repeated = torch.tensor([float(self._repeated)], device=self._job.world.device)
        self._job.world.all_reduce(repeated, op="max")
        return not repeated.item()

    def _replan(self) -> None:
        """Lay out new buckets, where all ranks want them.

        Parameters that have been unfrozen are exchanged at once, in the buckets that are laid out for them.
        """
        unfrozen = self._unfrozen()
        if self._buckets[-1].anyone_steady():
            if unfrozen:
                raise OutOfStep(
                    f"parameters were unfrozen on this rank ({', '.join(unfrozen)}) and not on all others. "
                    "Change requires_grad on all ranks at the same step."
                )
            return  # frozen here only, or here first
        trained = {name for name, parameter in self._job.parameters.items() if parameter.requires_grad}
        for rank, theirs in enumerate(self._job.world.all_gather_objects(sorted(trained))):
            if differing := sorted(trained.symmetric_difference(theirs)):
                raise OutOfStep(
                    f"other parameters are frozen on this rank than on rank {rank}: {', '.join(differing)}. "
                    "Change requires_grad on all ranks at the same step."
                )
        self._plan()
        self._begin()
        if unfrozen:
            self._exchange()
