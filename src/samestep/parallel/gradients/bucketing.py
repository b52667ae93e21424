"""Plans which gradients share a bucket, by their sizes."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Item:
    """The size of one gradient."""

    num_bytes: int
    kind: Hashable
    """Dtype and device, which are equal within a bucket."""


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
