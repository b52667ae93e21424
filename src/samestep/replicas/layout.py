"""Laying out the buckets of a model: the plan, made into message buffers."""

from dataclasses import dataclass

import torch
from torch import Tensor

from samestep.replicas.alone import Alone
from samestep.replicas.bucket import Bucket, kind_of, real
from samestep.replicas.compress import compressed
from samestep.replicas.plan import Item, plan_buckets
from samestep.replicas.synchroniser import Job


@dataclass(frozen=True)
class Member:
    """A parameter that takes part, and its position among all of them."""

    index: int
    name: str
    parameter: Tensor


@dataclass(frozen=True)
class Laid:
    """A bucket and the positions of its parameters."""

    bucket: Bucket | Alone
    indices: list[int]


def lay_out(job: Job, *, in_place: bool = False) -> list[Laid]:
    """Return buckets for the parameters that require gradients now, in the order in which they are sent.

    At least one. The running statistics of a kind ride in its last bucket, or in one of their own: also where
    gradients are compressed, because statistics are not.

    Args:
        job: with all parameters.
        in_place: leave gradients that fill a bucket out of buckets.
    """
    members = [
        Member(index, name, parameter)
        for index, (name, parameter) in enumerate(job.parameters.items())
        if parameter.requires_grad
    ]
    items = [_item(member.parameter) for member in members]
    plan = [
        [members[position] for position in positions]
        for positions in plan_buckets(items, bucket_bytes=job.bucket_bytes)
    ]
    last = {kind_of(bucket[0].parameter): row for row, bucket in enumerate(plan)}
    messages = {kind: compressed(kind[0], job.compress) for kind in last}
    last = {kind: row for kind, row in last.items() if messages[kind] is kind[0]}
    riding = {last.get(statistics.kind): statistics for statistics in job.statistics}
    laid = []
    for row, bucket in enumerate(plan):
        parameters = {member.name: member.parameter for member in bucket}
        kind = kind_of(bucket[0].parameter)
        content: Bucket | Alone
        if in_place and row not in riding and len(bucket) == 1:
            content = Alone(job.world, bucket[0].name, bucket[0].parameter)
        else:
            passenger, message = riding.get(row), messages[kind]
            content = Bucket(job.world, parameters, kind=kind, passenger=passenger, message=message)
        laid.append(Laid(content, [member.index for member in bucket]))
    alone = [statistics for statistics in job.statistics if statistics.kind not in last]
    laid += [Laid(Bucket(job.world, {}, kind=one.kind, passenger=one), []) for one in alone]
    if not laid:  # a message nevertheless: it tells who has unfrozen parameters
        kind = torch.get_default_dtype(), job.world.device
        laid.append(Laid(Bucket(job.world, {}, kind=kind, passenger=None), []))
    return laid


def _item(parameter: Tensor) -> Item:
    numbers = real(parameter)
    return Item(numbers.numel() * numbers.element_size(), kind_of(parameter))
