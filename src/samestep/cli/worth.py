"""``--worth``: the efficiency from which on more workers pay."""

from samestep.base.errors import UsageError


def efficiency(text: str) -> float:
    """Read an efficiency, as a part or in percent.

    >>> efficiency("0.7"), efficiency("70%")
    (0.7, 0.7)

    Raises:
        UsageError: it is none.
    """
    percent = text.strip().endswith("%")
    try:
        number = float(text.strip().removesuffix("%")) / (100 if percent else 1)
    except ValueError:
        number = 0.0
    if not 0 < number <= 1:
        raise UsageError(f"--worth {text} is no efficiency: give one such as 0.7 or 70%, at most 1.")
    return number
