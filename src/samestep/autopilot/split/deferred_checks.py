"""Raises the errors that a device finds in split calls, without making the host wait for the device.

Whether a loss can be combined, or an output is equal on all ranks, is known on the device only. Reading it at
once would let the device idle in each call. So the device writes it into memory of the host when it comes
there, and the host reads that memory later::

    call 1     device: flag = (outputs differ), copied to the host      host: goes on
    backward   host: the copy has arrived; raises, before the optimizer steps
               or it has not arrived; goes on, until a later call or backward, or the end of the script

On a CPU every copy has arrived at once, by the same code. Flags are equal on all ranks, but a copy may arrive
at one rank some calls before it arrives at another. That rank raises first, and the launcher ends the others,
which may wait for it in an all-reduce.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from samestep.base.context_values import bound
from samestep.base.errors import UsageError
from samestep.parallel.gradients.batch_norm import raise_now

_current: ContextVar["DeferredChecks | None"] = ContextVar("samestep_deferred_checks", default=None)


@dataclass(frozen=True, slots=True)
class _Flag:
    """A flag on its way to the host."""

    copy: Tensor  # bool, on the host
    arrival: Any  # the event of the device after the copy; None on a CPU
    message: str


class DeferredChecks:
    """The checks of one rank's split calls that wait for their device."""

    def __init__(self) -> None:
        self._flags: deque[_Flag] = deque()
        self._failure = ""

    def add(self, has_failed: Tensor, message: str) -> None:
        """Raise `UsageError` in a later `poll` if `has_failed`, one boolean, is true; equal on all ranks."""
        device = has_failed.device
        copy = torch.empty((), dtype=torch.bool, device="cpu", pin_memory=not _is_host(device))
        copy.copy_(has_failed.detach(), non_blocking=True)
        arrival = None
        if not _is_host(device):
            arrival = torch.get_device_module(device).Event()
            arrival.record()
        self._flags.append(_Flag(copy, arrival, message))

    def poll(self) -> None:
        """Read the flags that have arrived, without waiting.

        Raises:
            UsageError: a check has failed, in this call or an earlier one.
        """
        while self._flags and (self._flags[0].arrival is None or self._flags[0].arrival.query()):
            flag = self._flags.popleft()
            if bool(flag.copy):
                self._failure = self._failure or flag.message
        if self._failure:
            raise UsageError(self._failure)

    def finish(self) -> None:
        """Wait for all flags, and read them; see `poll`."""
        for flag in self._flags:
            if flag.arrival is not None:
                flag.arrival.synchronize()
        self.poll()

    @contextmanager
    def deferring(self) -> Iterator[None]:
        """Let `refuse` add its checks to these ones."""
        with bound(_current, self):
            yield


def _is_host(device: torch.device) -> bool:
    return device.type == "cpu"


def refuse(has_failed: Tensor, message: str) -> None:
    """Raise `UsageError` if `has_failed`, one boolean on a device, is true: later, within `deferring`.

    Elsewhere, as in an equivalence check, it is read at once.
    """
    checks = _current.get()
    if checks is None:
        raise_now(has_failed, message)
    else:
        checks.add(has_failed, message)
