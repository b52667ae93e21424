"""Refuses studies with more workers than can compute at the same time."""

from collections.abc import Sequence

from samestep.base.errors import UsageError


def refuse_too_many(workers: Sequence[int], *, places: int, what: str) -> None:
    """Refuse oversubscribed numbers of workers.

    Args:
        workers: the numbers.
        places: the number of workers that can compute at the same time.
        what: the resource, in words: ``2 cores (the machine itself)``.

    Raises:
        UsageError: a number is too large; names both numbers.
    """
    too_many = [number for number in workers if number > places]
    if too_many:
        rest = ",".join(str(number) for number in workers if number <= places)
        fewer = f"-n {rest}" if rest else "fewer workers"
        raise UsageError(
            f"{too_many[0]} workers oversubscribe {what}, so their times are not those of workers that have "
            f"their own. Give {fewer}, or --oversubscribe: such points are marked and left out of fits."
        )
