"""Parses the request for a benchmark, without torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from samestep.base.errors import UsageError
from samestep.base.units import LONGEST_S, bytes_of

COLLECTIVES = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "reduce", "gather", "scatter")
SYNCS = ("naive", "ring", "reference", "bucketed", "flat", "ddp", "exact", "data_parallel", "one_process")
"""Gradient synchronizers that `bench step` measures, and steps of one process in place of all workers."""
ONE_PROCESS = SYNCS[-1]
ALONE = "alone"
"""Its name for steps without synchronization."""
DTYPES = ("float32", "float64", "bfloat16", "float16", "int32", "int64")
SMALLEST, LARGEST = 4, 256 << 20
"""The default range of sizes in bytes, in powers of 4."""
BUCKET = 25 << 20
"""The default bucket size of DistributedDataParallel in bytes, which is measured too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request for a benchmark of one collective."""

    collective: str  # its name, one of `COLLECTIVES`
    sizes: tuple[int, ...]  # in bytes, ascending
    algorithms: tuple[str, ...] = ()  # their names; empty for all that the ranks can run
    dtype: str = "float32"  # of the elements
    rounds: int | None = None  # rounds of each size; None for as many as fit into `seconds`
    seconds: float = 2.0  # time for each size, without the checks
    timeout_s: float = 30.0  # timeout of one block of calls of an algorithm

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise UsageError(f"--dtype {self.dtype!r} is none of {', '.join(DTYPES)}.")
        if self.rounds is not None and self.rounds < 1:
            raise UsageError(f"--rounds {self.rounds}: there must be at least one.")
        if not 0 < self.seconds <= LONGEST_S:
            raise UsageError(f"--seconds {self.seconds:g} is not a valid time; give seconds, such as 2.")
        if not 0 < self.timeout_s <= LONGEST_S:
            raise UsageError(f"--hang-timeout {self.timeout_s:g} is not a timeout; give seconds, such as 30.")


def sizes_of(sizes: str | None, least: str | None, most: str | None) -> tuple[int, ...]:
    """Return the sizes that ``--sizes``, ``--min`` and ``--max`` ask for, ascending.

    Raises:
        UsageError: a size is invalid, or the options contradict each other.
    """
    if sizes is not None:
        if least is not None or most is not None:
            raise UsageError("--sizes lists all sizes; leave --min and --max out.")
        return tuple(sorted({bytes_of("--sizes", text) for text in sizes.split(",")}))
    low = SMALLEST if least is None else bytes_of("--min", least)
    high = LARGEST if most is None else bytes_of("--max", most)
    if low > high:
        raise UsageError(f"--min {least or low} is larger than --max {most or high}.")
    powers = [SMALLEST * 4**power for power in range(40)]
    return tuple(sorted(size for size in {low, high, BUCKET, *powers} if low <= size <= high))


def names_of(text: str | None) -> tuple[str, ...]:
    """Return the names in a list such as ``ring,native``."""
    return tuple(dict.fromkeys(name.strip().replace("-", "_") for name in (text or "").split(",") if name))


def chosen(asked: Sequence[str], there: Sequence[str], collective: str) -> tuple[str, ...]:
    """Return the algorithms to measure: the requested ones, or all available ones.

    Raises:
        UsageError: a requested one is not available.
    """
    for name in asked:
        if name not in there:
            raise UsageError(
                f"--algorithm {name}: for {collective} these ranks have {', '.join(there)}"
                + (
                    "; shared_memory needs ranks that are processes of one host, with tensors on the CPU."
                    if name == "shared_memory"
                    else "."
                )
            )
    return tuple(asked) or tuple(there)
