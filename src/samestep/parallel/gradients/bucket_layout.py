"""Plans which gradients share a bucket, and creates the buckets of a model."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from samestep.parallel.gradients.bucket import Bucket, InPlaceGradient, kind_of, real
from samestep.parallel.gradients.compress import compressed
from samestep.parallel.gradients.synchronizer import SyncConfig

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


@dataclass(frozen=True)
class BucketMember:
    """A trained parameter and its position among all parameters."""

    index: int
    name: str
    parameter: Tensor


@dataclass(frozen=True)
class PlacedBucket:
    """A bucket and the positions of its parameters."""

    bucket: Bucket | InPlaceGradient
    indices: list[int]


def lay_out(config: SyncConfig, *, in_place: bool = False) -> list[PlacedBucket]:
    """Return buckets for the parameters that require gradients now, in the order in which they are sent.

    There is at least one bucket. Running statistics are the payload of the last bucket of their kind, or of a
    separate one, also if gradients are compressed: statistics are not compressed. With `in_place`, gradients
    that fill a bucket are averaged without one.
    """
    members = [
        BucketMember(index, name, parameter)
        for index, (name, parameter) in enumerate(config.parameters.items())
        if parameter.requires_grad and name not in config.sparse
    ]
    items = [_item(member.parameter) for member in members]
    plan = [
        [members[position] for position in positions]
        for positions in plan_buckets(items, bucket_bytes=config.bucket_bytes)
    ]
    last = {kind_of(bucket[0].parameter): row for row, bucket in enumerate(plan)}
    messages = {kind: compressed(kind[0], config.compress) for kind in last}
    last = {kind: row for kind, row in last.items() if messages[kind] is kind[0]}
    payloads = {last.get(statistics.kind): statistics for statistics in config.statistics}
    placed = []
    for row, bucket in enumerate(plan):
        parameters = {member.name: member.parameter for member in bucket}
        kind = kind_of(bucket[0].parameter)
        content: Bucket | InPlaceGradient
        if in_place and row not in payloads and len(bucket) == 1:
            content = InPlaceGradient(config.world, bucket[0].name, bucket[0].parameter)
        else:
            payload, message = payloads.get(row), messages[kind]
            content = Bucket(config.world, parameters, kind=kind, payload=payload, message=message)
        placed.append(PlacedBucket(content, [member.index for member in bucket]))
    alone = [statistics for statistics in config.statistics if statistics.kind not in last]
    placed += [PlacedBucket(Bucket(config.world, {}, kind=one.kind, payload=one), []) for one in alone]
    if not placed:  # a message is needed all the same, to detect unfrozen parameters
        kind = torch.get_default_dtype(), config.world.device
        placed.append(PlacedBucket(Bucket(config.world, {}, kind=kind, payload=None), []))
    return placed


def _item(parameter: Tensor) -> Item:
    numbers = real(parameter)
    return Item(numbers.numel() * numbers.element_size(), kind_of(parameter))
