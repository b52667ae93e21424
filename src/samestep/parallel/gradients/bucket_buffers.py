"""Creates the message buffers of a model's buckets from their plan."""

from dataclasses import dataclass

import torch
from torch import Tensor

from samestep.parallel.gradients.bucket import Bucket, kind_of, real
from samestep.parallel.gradients.bucketing import Item, plan_buckets
from samestep.parallel.gradients.compress import compressed
from samestep.parallel.gradients.in_place import InPlaceGradient
from samestep.parallel.gradients.synchronizer import SyncConfig


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
    separate one, also if gradients are compressed: statistics are not compressed.

    Args:
        config: the configuration with all parameters.
        in_place: average gradients that fill a bucket without a bucket.
    """
    members = [
        BucketMember(index, name, parameter)
        for index, (name, parameter) in enumerate(config.parameters.items())
        if parameter.requires_grad
    ]
    items = [_item(member.parameter) for member in members]
    plan = [
        [members[position] for position in positions]
        for positions in plan_buckets(items, bucket_bytes=config.bucket_bytes)
    ]
    last = {kind_of(bucket[0].parameter): row for row, bucket in enumerate(plan)}
    messages = {kind: compressed(kind[0], config.compress) for kind in last}
    last = {kind: row for kind, row in last.items() if messages[kind] is kind[0]}
    riding = {last.get(statistics.kind): statistics for statistics in config.statistics}
    laid = []
    for row, bucket in enumerate(plan):
        parameters = {member.name: member.parameter for member in bucket}
        kind = kind_of(bucket[0].parameter)
        content: Bucket | InPlaceGradient
        if in_place and row not in riding and len(bucket) == 1:
            content = InPlaceGradient(config.world, bucket[0].name, bucket[0].parameter)
        else:
            payload, message = riding.get(row), messages[kind]
            content = Bucket(config.world, parameters, kind=kind, payload=payload, message=message)
        laid.append(PlacedBucket(content, [member.index for member in bucket]))
    alone = [statistics for statistics in config.statistics if statistics.kind not in last]
    laid += [PlacedBucket(Bucket(config.world, {}, kind=one.kind, payload=one), []) for one in alone]
    if not laid:  # a message is needed all the same, to detect unfrozen parameters
        kind = torch.get_default_dtype(), config.world.device
        laid.append(PlacedBucket(Bucket(config.world, {}, kind=kind, payload=None), []))
    return laid


def _item(parameter: Tensor) -> Item:
    numbers = real(parameter)
    return Item(numbers.numel() * numbers.element_size(), kind_of(parameter))
