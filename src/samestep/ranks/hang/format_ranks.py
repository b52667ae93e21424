"""Formats ranks for messages."""

from collections.abc import Collection


def format_ranks(ranks: Collection[int]) -> str:
    """Return ranks as text: ``rank 1``, ``ranks 0, 2-5``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    text = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"rank{'' if len(ranks) == 1 else 's'} {text}"


def verb(ranks: Collection[int], one: str, many: str) -> str:
    """Return the form of a verb that fits a number of ranks."""
    return one if len(ranks) == 1 else many
