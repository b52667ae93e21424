"""Reads the rank, the collective and the lines from the report of a hang or a crash."""

import re
from dataclasses import dataclass

from gallery_hangs.manifest import Script
from samestep.base.folders import shown

_RANK = re.compile(r"(?<!local )\branks? (\d+)")
_PLACE = re.compile(r"(\S+\.py):(\d+)")
_COLLECTIVE = re.compile(r"\b([a-z_]+) #\d+|\b(recv|send)\b")


@dataclass(frozen=True)
class Report:
    """What a report names.

    Attributes:
        ranks: the ranks, in the order of their first mention.
        collective: the first collective; empty for none.
        lines: the line of each rank, as ``file:line``: the first that follows its mention.
    """

    ranks: tuple[int, ...]
    collective: str
    lines: dict[int, str]

    def differences(self, script: Script) -> list[str]:
        """Return which of the ranks at fault, the collective and the line are not those of a script."""
        place, rank = f"{shown(str(script.path))}:{script.line}", script.rank_at_line
        checks = {
            "rank": self.ranks[: len(script.ranks)] == script.ranks,
            "collective": self.collective == script.collective,
            "line": place in (self.lines.values() if rank is None else [self.lines.get(rank)]),
        }
        return [name for name, is_right in checks.items() if not is_right]


def read_report(text: str) -> Report:
    """Return what a report names."""
    ranks = [(found.start(), int(found[1])) for found in _RANK.finditer(text)]
    collective = _COLLECTIVE.search(text)
    lines: dict[int, str] = {}
    for place in _PLACE.finditer(text):
        before = [rank for start, rank in ranks if start < place.start()]
        if before:
            lines.setdefault(before[-1], place[0])
    return Report(
        ranks=tuple(dict.fromkeys(rank for _, rank in ranks)),
        collective=(collective[1] or collective[2]) if collective else "",
        lines=lines,
    )
