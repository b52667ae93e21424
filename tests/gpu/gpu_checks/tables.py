"""Prints checks and their outcomes as tables."""

import sys
from collections import Counter
from collections.abc import Iterable, Sequence

from gpu_checks.registry import Check
from gpu_checks.runner import Outcome


def write(text: str) -> None:
    """Print a text on stdout at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in which all columns but the last have one width."""
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head) - 1)]
    padded = (
        [*(cell.ljust(width) for cell, width in zip(line, [*widths], strict=False)), line[-1]]
        for line in lines
    )
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


def table_of_checks(checks: Sequence[Check]) -> str:
    """Return the checks with what each needs and shows."""
    head = ("check", "GPUs", "types", "limit", "shows")
    return table(
        head,
        [(one.name, str(one.gpus), ",".join(one.types), f"{one.seconds:g} s", one.shows) for one in checks],
    )


def table_of_outcomes(outcomes: Sequence[Outcome]) -> str:
    """Return the outcomes with their reasons or figures, and a last line with their numbers."""
    rows = [(one.name, one.result, f"{one.seconds:.1f}", _detail(one)) for one in outcomes]
    counts = Counter(one.result for one in outcomes)
    total = ", ".join(f"{number} {result}" for result, number in sorted(counts.items()))
    return f"{table(('check', 'result', 'seconds', 'detail'), rows)}\n\n{total}"


def _detail(outcome: Outcome) -> str:
    if outcome.reason:
        return outcome.reason.splitlines()[0]
    return ", ".join(f"{name} {_short(value)}" for name, value in outcome.figures.items())


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
