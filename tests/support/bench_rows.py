"""Rows of a benchmark of collectives, made from medians."""

from samestep.bench.figures import figures


def rows_of(times, spread=0.0):
    """Return the rows of these medians in seconds, by algorithm and bytes, of two ranks.

    Their quartiles are at the relative distance `spread` from the medians.
    """
    return [
        figures(
            "all_reduce",
            name,
            nbytes=nbytes,
            ranks=2,
            times=[seconds * (1 - 2 * spread), seconds, seconds * (1 + 2 * spread)],
        )
        for name, by_size in times.items()
        for nbytes, seconds in by_size.items()
    ]
