"""What is to be measured, as a value; needs no torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from samestep.base.errors import UsageError
from samestep.base.units import LONGEST_S, bytes_of

COLLECTIVES = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "reduce", "gather", "scatter")
SYNCS = ("naive", "ring", "reference", "bucketed", "flat", "ddp", "exact", "data_parallel")
"""How gradients may be exchanged in a step."""
DTYPES = ("float32", "float64", "bfloat16", "float16", "int32", "int64")
SMALLEST, LARGEST = 4, 256 << 20
"""The sizes that are measured where none are given: by powers of 4, in bytes."""
BUCKET = 25 << 20
"""What DistributedDataParallel exchanges at a time, measured beside the powers of 4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to measure, and for how long.

    Args:
        collective: its name, one of `COLLECTIVES`.
        sizes: in bytes, ascending.
        algorithms: by name; empty for all that the ranks can run.
        dtype: of the elements.
        rounds: of each size; None for as many as `seconds` hold.
        seconds: for each size, without the checks.
        timeout_s: how long one turn of an algorithm may take.
    """

    collective: str
    sizes: tuple[int, ...]
    algorithms: tuple[str, ...] = ()
    dtype: str = "float32"
    rounds: int | None = None
    seconds: float = 2.0
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise UsageError(f"--dtype {self.dtype!r} is none of {', '.join(DTYPES)}.")
        if self.rounds is not None and self.rounds < 1:
            raise UsageError(f"--rounds {self.rounds}: there must be at least one.")
        if not 0 < self.seconds <= LONGEST_S:
            raise UsageError(f"--seconds {self.seconds:g} is no time to measure for: give some, such as 2.")
        if not 0 < self.timeout_s <= LONGEST_S:
            raise UsageError(f"--timeout {self.timeout_s:g} is no time to wait: give seconds, such as 30.")


def sizes_of(sizes: str | None, least: str | None, most: str | None) -> tuple[int, ...]:
    """Return the sizes that ``--sizes``, ``--min`` and ``--max`` ask for, ascending.

    Raises:
        UsageError: they are no sizes, or say different things.
    """
    if sizes is not None:
        if least is not None or most is not None:
            raise UsageError(
                "--sizes names all sizes, so --min and --max have nothing to say: leave them out."
            )
        return tuple(sorted({bytes_of("--sizes", text) for text in sizes.split(",")}))
    low = SMALLEST if least is None else bytes_of("--min", least)
    high = LARGEST if most is None else bytes_of("--max", most)
    if low > high:
        raise UsageError(f"--min {least or low} is more than --max {most or high}: nothing lies between.")
    powers = [SMALLEST * 4**power for power in range(40)]
    return tuple(sorted(size for size in {low, high, BUCKET, *powers} if low <= size <= high))


def names_of(text: str | None) -> tuple[str, ...]:
    """Return the names in a list such as ``ring,native``."""
    return tuple(dict.fromkeys(name.strip().replace("-", "_") for name in (text or "").split(",") if name))


def chosen(asked: Sequence[str], there: Sequence[str], collective: str) -> tuple[str, ...]:
    """Return the algorithms to measure: those asked for, or all there are.

    Raises:
        UsageError: one that was asked for is not there.
    """
    for name in asked:
        if name not in there:
            raise UsageError(
                f"--algorithm {name}: {collective} has, among these ranks, {', '.join(there)}"
                + (
                    "; shared_memory takes ranks that are processes of one host, with tensors on its CPU."
                    if name == "shared_memory"
                    else "."
                )
            )
    return tuple(asked) or tuple(there)
