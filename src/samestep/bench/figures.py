"""Parses the request for a benchmark; computes bandwidths from times, and formats them as tables.

Bandwidths are defined as in NCCL's tests. The size is that of the whole tensor: of the result of an
all-gather or a gather, of the input of a reduce-scatter or a scatter. ``algbw`` is size by time. ``busbw``
is the bytes that a rank has to move, by time: it can be compared between numbers of ranks, and with the
bandwidth of the hardware.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import inf
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from samestep.base.units import bytes_of, bytes_text, check_seconds, seconds_text
from samestep.report.page import text_table

COLLECTIVES = ("all_reduce", "broadcast", "all_gather")
SYNCS = ("reference", "bucketed", "flat", "ddp", "exact")
"""Gradient synchronizers that `bench step` measures."""
ALONE = "alone"
"""Its name for steps without synchronization."""
BUCKET = 25 << 20
"""The default bucket size of DistributedDataParallel in bytes."""
SIZES = (4, 1 << 10, 64 << 10, 1 << 20, BUCKET, 256 << 20)
"""The default sizes in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request for a benchmark of one collective."""

    collective: str  # its name, one of `COLLECTIVES`
    sizes: tuple[int, ...]  # in bytes, ascending
    seconds: float = 2.0  # time for each size

    def __post_init__(self) -> None:
        check_seconds("--seconds", self.seconds)


def sizes_of(text: str | None) -> tuple[int, ...]:
    """Return the sizes in a list such as ``4,64K,25MiB`` ascending, or the default ones.

    Raises:
        UsageError: a size is invalid.
    """
    if text is None:
        return SIZES
    return tuple(sorted({bytes_of("--sizes", size) for size in text.split(",")}))


if TYPE_CHECKING:
    from samestep.bench.step_times import StepRow

Spread: TypeAlias = tuple[float, float]
"""The first and the third quartile of some figures."""
_T = TypeVar("_T")
CLEARLY = 0.05
"""The share of time by which an algorithm must beat the fastest ones so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The figures of one algorithm at one size."""

    collective: str  # its name
    algorithm: str  # its name
    bytes: int  # size of the whole tensor
    ranks: int  # number of ranks
    median_s: float  # median seconds of a call on the slowest rank
    algbw_bytes_per_s: float  # size by time
    busbw_bytes_per_s: float  # bytes that each rank has to move, by time
    spread_s: Spread  # of the times

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that JSON output shows."""
        return {name: value for name, value in asdict(self).items() if name != "spread_s"}


def bus_factor(collective: str, ranks: int) -> float:
    """Return the number of tensors that each rank has to move, as defined by NCCL's tests."""
    if collective in ("broadcast", "reduce"):
        return 1.0
    return (2 if collective == "all_reduce" else 1) * (ranks - 1) / ranks


def figures(collective: str, algorithm: str, *, nbytes: int, ranks: int, times: Sequence[float]) -> Row:
    """Return the figures of one algorithm at one size, that of the whole tensor.

    `times` are the seconds of a call, one for each round.
    """
    middle = median(times)
    algbw = nbytes / middle
    return Row(
        collective=collective,
        algorithm=algorithm,
        bytes=nbytes,
        ranks=ranks,
        median_s=middle,
        algbw_bytes_per_s=algbw,
        busbw_bytes_per_s=algbw * bus_factor(collective, ranks),
        spread_s=quartiles(times),
    )


def slowest(times: Sequence[Sequence[float]]) -> list[float]:
    """Return the time of the slowest rank for each round."""
    return [max(of_round) for of_round in zip(*times, strict=True)]


def quartiles(times: Sequence[float]) -> Spread:
    """Return the first and the third quartile; the value itself if there is one only."""
    if len(times) < 2:
        return times[0], times[0]
    low, _, high = quantiles(times, n=4, method="inclusive")
    return low, high


def overlap(a: Spread, b: Spread) -> bool:
    """Return whether two spreads have a value in common, so that no difference is measured.

    >>> overlap((1.0, 2.0), (2.0, 3.0)), overlap((3.0, 4.0), (1.0, 2.0))
    (True, False)
    """
    return a[0] <= b[1] and b[0] <= a[1]


def as_good(best_first: Sequence[_T], spread: Callable[[_T], Spread]) -> list[_T]:
    """Return the first one, and those whose spreads overlap with its own: no difference is measured.

    >>> as_good(["a", "b", "c"], {"a": (1.0, 2.0), "b": (1.5, 3.0), "c": (2.5, 3.5)}.__getitem__)
    ['a', 'b']
    """
    best, *rest = best_first
    return [best, *(candidate for candidate in rest if overlap(spread(candidate), spread(best)))]


def fastest(rows: Sequence[Row]) -> dict[int, list[str]]:
    """Return by size the fastest algorithm, and after it those from which no difference is measured."""
    by_size: dict[int, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row.bytes, row.median_s)):
        by_size.setdefault(row.bytes, []).append(row)
    return {
        nbytes: [row.algorithm for row in as_good(here, lambda row: row.spread_s)]
        for nbytes, here in by_size.items()
    }


def best_text(names: Sequence[str]) -> str:
    """Return the best one of `as_good`, or the names between which no difference is measured.

    >>> best_text(["ring"]), best_text(["ring", "tree", "naive"])
    ('ring', 'no difference is measured between ring, tree and naive')
    """
    *first_names, last = names
    return f"no difference is measured between {', '.join(first_names)} and {last}" if first_names else last


def crossovers(rows: Sequence[Row]) -> list[tuple[int, list[str]]]:
    """Return the sizes from which on other algorithms are the fastest, ascending, with their names.

    Of several names none is measured to be slower than another algorithm at any size up to the next one; the
    first is the fastest at the first size. Neither overlapping quartiles nor a median that is less by a share
    below `CLEARLY` are a difference, since that can be chance.
    """
    medians = {(row.bytes, row.algorithm): row.median_s for row in rows}
    changes: list[tuple[int, list[str]]] = []
    for nbytes, best in fastest(rows).items():
        limit = medians[nbytes, best[0]] / (1 - CLEARLY)
        held = changes[-1][1] if changes else []
        kept = [name for name in held if name in best or medians.get((nbytes, name), inf) <= limit]
        if kept:
            changes[-1] = (changes[-1][0], kept)
        else:
            changes.append((nbytes, best))
    return changes


_HEAD = ("size", "algorithm", "median", "quartiles", "algbw GB/s", "busbw GB/s")
STEP_HEAD = ("synchronizer", "step", "exposed", "efficiency", "quartiles")


def report_text(rows: Sequence[Row]) -> str:
    """Return the table of a collective, and its fastest algorithms by size."""
    return "\n".join([*table(rows), "", f"fastest: {fastest_text(rows)}"])


def table(rows: Sequence[Row]) -> list[str]:
    """Return the lines of a table of all figures, fastest first within a size."""
    body = []
    shown = None
    for row in sorted(rows, key=lambda row: (row.bytes, row.median_s)):
        body.append(
            (
                "" if row.bytes == shown else bytes_text(row.bytes),
                row.algorithm,
                seconds_text(row.median_s),
                " - ".join(map(seconds_text, row.spread_s)),
                f"{row.algbw_bytes_per_s / 1e9:.3g}",
                f"{row.busbw_bytes_per_s / 1e9:.3g}",
            )
        )
        shown = row.bytes
    return text_table(_HEAD, body)


def fastest_text(rows: Sequence[Row]) -> str:
    """Return the fastest algorithms by size, in one line."""
    return "; ".join(f"{best_text(names)} from {bytes_text(nbytes)}" for nbytes, names in crossovers(rows))


def step_cells(rows: Sequence["StepRow"]) -> list[tuple[str, ...]]:
    """Return the cells of a table under `STEP_HEAD`, the fastest synchronizer first."""
    return [
        (
            row.sync,
            seconds_text(row.step_s),
            "-" if row.exposed_sync_s is None else seconds_text(row.exposed_sync_s),
            f"{row.efficiency:.0%}",
            " - ".join(f"{quartile:.0%}" for quartile in row.efficiency_quartiles),
        )
        for row in sorted(rows, key=lambda row: -row.efficiency)
    ]


def fastest_synchronizer(rows: Sequence["StepRow"]) -> str:
    """Return the synchronizer with the highest efficiency, or those that are as fast."""
    ordered = sorted((row for row in rows if row.sync != ALONE), key=lambda row: -row.efficiency)
    return best_text([row.sync for row in as_good(ordered, lambda row: row.efficiency_quartiles)])
