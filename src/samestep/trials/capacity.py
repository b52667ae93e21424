"""Whether as many workers as are asked for can compute at the same time."""

from collections.abc import Sequence

from samestep.base.errors import UsageError


def refuse_too_many(workers: Sequence[int], *, places: int, what: str) -> None:
    """Refuse numbers of workers that share what each needs for itself.

    Args:
        workers: the numbers.
        places: how many workers can compute at the same time.
        what: they compute on, in words: ``2 cores (the machine itself)``.

    Raises:
        UsageError: there are too few; says both numbers.
    """
    too_many = [number for number in workers if number > places]
    if too_many:
        rest = ",".join(str(number) for number in workers if number <= places)
        leave = f"Ask for -n {rest}" if rest else "Ask for fewer"
        raise UsageError(
            f"{too_many[0]} workers would share {what}: what they take says nothing of workers that have a "
            f"place of their own. {leave}, or force it with --oversubscribe: such points are marked, and "
            "left out of fits."
        )
