"""Plans which gradients share a bucket, and averages the buckets.

`Bucketed` sends them while backward still computes, `Flat` at its end.
"""

import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from samestep.base.errors import OutOfStep, UsageError
from samestep.parallel.gradients.bucket import (
    ORDINARY,
    Bucket,
    Flags,
    InPlaceGradient,
    compressed,
    kind_of,
    message_bytes,
    real,
)
from samestep.parallel.gradients.synchronizer import GradientSynchronizer, SyncConfig
from samestep.ranks.collectives.shared_memory import PIECE, OneHostWorld

MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Item:
    """The size of one gradient."""

    num_bytes: int
    kind: Hashable  # dtype and device, which are equal within a bucket


def plan_buckets(items: Sequence[Item], *, bucket_bytes: int) -> list[list[int]]:
    """Return the buckets in the order in which they are sent, each with the positions of its items.

    Backward reaches the parameters roughly in reverse order of registration, so items are assigned from the
    last one, and a bucket is closed when the next item of its kind does not fit. With room for two::

        registered   0  1  2  3  4
        kind         a  a  b  a  a
        buckets      [4 3] [2] [1 0]       in the order in which their last items are ready

    An item larger than `bucket_bytes` gets a bucket of its own.
    """
    closed: list[list[int]] = []
    growing: dict[Hashable, list[int]] = {}
    room: dict[Hashable, int] = {}
    for position in reversed(range(len(items))):
        item = items[position]
        if item.kind in growing and item.num_bytes > room[item.kind]:
            closed.append(growing.pop(item.kind))
        if item.kind not in growing:
            growing[item.kind], room[item.kind] = [], bucket_bytes
        growing[item.kind].append(position)
        room[item.kind] -= item.num_bytes
    return sorted([*closed, *growing.values()], key=lambda bucket: -bucket[-1])


_PlacedBucket: TypeAlias = tuple[Bucket | InPlaceGradient, list[int]]
"""A bucket, and the positions of its parameters among all parameters."""


def _lay_out(config: SyncConfig, *, in_place: bool = False) -> list[_PlacedBucket]:
    """Return buckets for the parameters that require gradients now, in the order in which they are sent.

    There is at least one bucket. Running statistics are the payload of the last bucket of their kind, or of a
    separate one, also if gradients are compressed: statistics are not compressed. With `in_place`, gradients
    that fill a bucket are averaged without one.
    """
    members = [
        (index, name, parameter)
        for index, (name, parameter) in enumerate(config.parameters.items())
        if parameter.requires_grad
    ]
    items = [_item(parameter) for *_, parameter in members]
    plan = [
        [members[position] for position in positions]
        for positions in plan_buckets(items, bucket_bytes=config.bucket_bytes)
    ]
    last = {kind_of(bucket[0][2]): row for row, bucket in enumerate(plan)}
    messages = {kind: compressed(kind[0], config.compress) for kind in last}
    last = {kind: row for kind, row in last.items() if messages[kind] is kind[0]}
    payloads = {last.get(statistics.kind): statistics for statistics in config.statistics}
    placed: list[_PlacedBucket] = []
    for row, bucket in enumerate(plan):
        (_, first_name, first), kind = bucket[0], kind_of(bucket[0][2])
        content: Bucket | InPlaceGradient
        if in_place and row not in payloads and len(bucket) == 1:
            content = InPlaceGradient(config.world, first_name, first)
        else:
            parameters = {name: parameter for _, name, parameter in bucket}
            payload, message = payloads.get(row), messages[kind]
            content = Bucket(config.world, parameters, kind=kind, payload=payload, message=message)
        placed.append((content, [index for index, *_ in bucket]))
    placed += [
        (Bucket(config.world, {}, kind=statistics.kind, payload=statistics), [])
        for statistics in config.statistics
        if statistics.kind not in last
    ]
    if not placed:  # a message is needed all the same, to detect unfrozen parameters
        kind = torch.get_default_dtype(), config.world.device
        placed.append((Bucket(config.world, {}, kind=kind, payload=None), []))
    return placed


def _item(parameter: Tensor) -> Item:
    numbers = real(parameter)
    return Item(numbers.numel() * numbers.element_size(), kind_of(parameter))


FROZEN_SYNCS = 10
"""Synchronizations in which a parameter stays frozen before the buckets are laid out without it."""


def current_stream(device: torch.device) -> Any:
    """Return the stream on which the calling thread computes; None on a CPU, which has none."""
    return None if device.type == "cpu" else torch.get_device_module(device).current_stream(device)


class Bucketed(GradientSynchronizer):
    """Asynchronous all-reduces of buckets, overlapped with backward.

    ::

        backward        layer 4 . layer 3 . layer 2 . layer 1 |
        communication             [bucket 0] [bucket 1]       | [bucket 2]  then copy the averages

    Ranks must send in one order, whichever parameters each of them uses. So a bucket is sent early only when
    it is full and all buckets before it were sent; the last bucket, with the flags, and one with running
    statistics wait for the end; and of several models only the first to be replicated sends early.

    Where graphs are nested and share parameters (a block under reentrant checkpointing, used twice), a
    gradient can change after its bucket was sent. The first synchronization sends nothing early and detects,
    for all ranks, whether that happens, and whether graphs are nested. If it begins later, all ranks send
    those buckets again, which is correct because averaging starts from ``p.grad``.

    A bucket is copied on the stream of its last gradient, which waits for no other stream. So nothing more is
    sent early in a backward whose gradients are accumulated on several streams; torch joins these at its end.

    All ranks lay out the buckets again when parameters have been unfrozen, and when some have stayed frozen
    for a while, because their bucket is never full.
    """

    in_place = False
    """Whether large gradients are averaged without a bucket."""

    def __init__(self, config: SyncConfig) -> None:
        super().__init__(config)
        self._lock = threading.Lock()  # gradients of several devices arrive on several threads
        self._parameters = list(config.parameters.values())
        self._plan()
        self._prepare()

    def _plan(self) -> None:
        placed = _lay_out(self._config, in_place=self.in_place)
        self._buckets = [bucket for bucket, _ in placed]
        self._members = [indices for _, indices in placed]
        self.gradient_bytes = message_bytes(self._parameters, self._config.compress)
        self._row = {index: row for row, indices in enumerate(self._members) for index in indices}
        self._frozen = {
            name: parameter
            for name, parameter in self._config.parameters.items()
            if not parameter.requires_grad
        }
        self._frozen_members: list[int] = []
        self._num_frozen_syncs = 0
        self._overlap: bool | None = None if self._config.may_overlap else False  # None: not known yet
        self._any_rank_nests = False

    def _prepare(self) -> None:
        for bucket in self._buckets:
            bucket.drain()  # pending since a backward that ended in an error
        self._awaited = [set(indices) for indices in self._members]
        self._num_sent = 0
        self._repeated = False
        self._flags = ORDINARY
        self._stale: set[int] = set()
        self._streams: dict[torch.device, Any] = {}  # of the first gradient of this backward on each device
        self._has_one_stream = True

    def _gradient_ready(self, index: int) -> None:
        with self._lock:
            row = self._row.get(index)
            if row is None:
                return  # frozen when the buckets were laid out; `_replan` handles it
            if index in self._awaited[row]:
                self._awaited[row].remove(index)
            else:
                self._repeated = True
                if row < self._num_sent:
                    self._stale.add(row)
            if self._overlap and self._may_send_early and self._is_on_one_stream(self._parameters[index]):
                self._send_full()

    def _is_on_one_stream(self, parameter: Tensor) -> bool:
        """Return whether the gradients so far were accumulated on one stream of each device."""
        stream = current_stream(parameter.device)
        if self._streams.setdefault(parameter.device, stream) != stream:
            self._has_one_stream = False
        return self._has_one_stream

    def _send_full(self) -> None:
        with torch.no_grad():
            while self._num_sent < len(self._buckets) - 1:
                bucket = self._buckets[self._num_sent]
                if self._awaited[self._num_sent] or bucket.has_payload:
                    return
                self._send(self._num_sent)
                self._num_sent += 1

    def _send(self, row: int) -> None:
        """Send a bucket; the last one carries the flags."""
        if row == len(self._buckets) - 1:
            self._flags = Flags(
                steady=not self._unfrozen() and self._num_frozen_syncs < FROZEN_SYNCS,
                flat=self._backward is None or not self._backward.has_nested,
                stale=bool(self._stale),
            )
            self._buckets[row].send(self._flags)
        else:
            self._buckets[row].send()

    def _average(self) -> None:
        for row in range(self._num_sent, len(self._buckets)):
            self._send(row)
        for bucket in self._buckets:
            bucket.wait()
        if self._any_rank_nests or not self._flags.flat:
            self._send_stale_again()
        for bucket in self._buckets:
            bucket.unpack()
        self._num_sent = 0
        if self._overlap is None:
            self._overlap = not self._any_rank_repeats()
        self._count_frozen()
        if not self._flags.steady:
            self._replan()

    def _send_stale_again(self) -> None:
        """Average the buckets again in which a gradient of any rank has changed since they were sent."""
        flags = self._buckets[-1].flags_of_any_rank()
        if not flags.stale:
            return
        if flags.flat and not self._any_rank_nests:
            raise OutOfStep(
                "gradients changed after they were sent, because a backward runs inside backward since this "
                "step, and not on all ranks. Call checkpoint with use_reentrant=False."
            )
        stale = torch.zeros(len(self._buckets), device=self._config.world.device)
        stale[sorted(self._stale)] = 1
        self._config.world.all_reduce(stale, op="max")
        for row in stale.nonzero().flatten().tolist():
            self._buckets[row].send()
            self._buckets[row].wait()
        self._overlap = False

    def _count_frozen(self) -> None:
        """Count the consecutive synchronizations in which the same parameters were frozen."""
        frozen = [index for index in self._row if not self._parameters[index].requires_grad]
        is_unchanged = bool(frozen) and frozen == self._frozen_members
        self._num_frozen_syncs = self._num_frozen_syncs + 1 if is_unchanged else 0
        self._frozen_members = frozen

    def _unfrozen(self) -> list[str]:
        return [name for name, parameter in self._frozen.items() if parameter.requires_grad]

    def _any_rank_repeats(self) -> bool:
        """Return whether gradients of any rank changed twice; record whether any rank nests graphs."""
        flags = [float(self._repeated), float(not self._flags.flat)]
        numbers = torch.tensor(flags, device=self._config.world.device)
        self._config.world.all_reduce(numbers, op="max")
        repeats, self._any_rank_nests = numbers.bool().tolist()
        return bool(repeats)

    def _replan(self) -> None:
        """Lay out new buckets if all ranks need them, and average unfrozen parameters at once."""
        unfrozen = self._unfrozen()
        if self._buckets[-1].flags_of_any_rank().steady:
            if unfrozen:
                raise OutOfStep(
                    f"parameters were unfrozen on this rank ({', '.join(unfrozen)}) and not on all others. "
                    "Change requires_grad on all ranks at the same step."
                )
            return  # another rank has not frozen them, or not yet for as long
        trained = {name for name, parameter in self._config.parameters.items() if parameter.requires_grad}
        for rank, names in enumerate(self._config.world.all_gather_objects(sorted(trained))):
            if differing := sorted(trained.symmetric_difference(names)):
                raise OutOfStep(
                    f"other parameters are frozen on this rank than on rank {rank}: {', '.join(differing)}. "
                    "Change requires_grad on all ranks at the same step."
                )
        self._plan()
        self._prepare()
        if unfrozen:
            self._average()


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
