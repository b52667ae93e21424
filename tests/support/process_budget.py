"""Counts the processes that tests start, and compares them with a budget for each tier.

An interpreter that imports torch takes 2 s of a core. The suite has grown to an hour by such starts once.
"""

import sys
from collections import Counter

BUDGETS = {
    "unit": 260,  # GPU checks and documentation; 210 in November 2026
    "ranks": 5,
    "process": 820,  # runs of `verify`, ranks that are lost or that an exercise blocks; 720
    "end_to_end": 450,  # a command each; 380
    "systems": 500,  # network namespaces, daemons of Slurm, and the commands on their nodes; 420
}
"""The programs, and the commands forked from a server, that the tests of a tier may start in `make test`."""

started: Counter[str] = Counter()
"""The processes that the tests of each tier have started."""
_tier = ""


def begin(tier: str) -> None:
    """Count the processes that are started from now on for a tier."""
    global _tier
    _tier = tier


def count_process(number: int = 1) -> None:
    """Count processes that were started."""
    started[_tier] += number


def _audit(event: str, _: object) -> None:
    if event in ("subprocess.Popen", "os.fork"):
        count_process()


def watch() -> None:
    """Count the programs that this process starts, and its forks; a fork server counts its own."""
    sys.addaudithook(_audit)


def tier_of(path: str) -> str:
    """Return the tier of a test by its path below the folder of the tests, such as ``unit/test_docs.py``."""
    first, *rest = path.split("/")
    if rest and rest[0] == "systems":
        return "systems"
    return first if first in BUDGETS else "unit"


def exceeded() -> list[str]:
    """Return a line for each tier that has started more processes than its budget."""
    return [
        f"tests/{tier} started {started[tier]} processes; their budget is {budget} "
        "(tests/support/process_budget.py): share a kept process, or mark tests as long"
        for tier, budget in BUDGETS.items()
        if started[tier] > budget
    ]
