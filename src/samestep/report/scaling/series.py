"""The points of a study by kind: strong and weak, and each variant, each under a letter of its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from string import ascii_lowercase

from samestep.scaling.study import Point, Study


@dataclass(frozen=True, slots=True)
class Kind:
    """The points of one mode and variant, by number of workers."""

    letter: str
    """What it is called where there is little room; empty where there is one kind only."""
    name: str
    points: Sequence[Point]

    @property
    def title(self) -> str:
        """Its letter and name."""
        return f"{self.letter}: {self.name}" if self.letter else self.name

    @property
    def has_speedup(self) -> bool:
        """Whether there is another number of workers to compare with."""
        return len({point.workers for point in self.points}) > 1

    @property
    def largest(self) -> Point:
        """The point with the most workers, one of those that had a core for each if there are such."""
        fair = [point for point in self.points if not point.oversubscribed]
        return (fair or self.points)[-1]


def kinds(study: Study) -> list[Kind]:
    """Return the kinds of `study` in the order of its points; each has a point."""
    order = list(dict.fromkeys((point.mode, point.variant) for point in study.points))
    by_kind = {
        of: sorted(points, key=lambda point: point.workers)
        for of, points in groupby(
            sorted(study.points, key=lambda point: order.index((point.mode, point.variant))),
            key=lambda point: (point.mode, point.variant),
        )
    }
    modes = {mode for mode, _ in order}
    found = []
    for number, (mode, variant) in enumerate(order):
        letter = ascii_lowercase[number % 26] if len(order) > 1 else ""
        words = _SPOKEN[mode] if len(modes) > 1 or not variant else ""
        found.append(Kind(letter, ", ".join(filter(None, [words, variant])), by_kind[mode, variant]))
    return found


def headings(found: Sequence[Kind]) -> list[str]:
    """Return the titles of kinds, behind what all of them are where none says it itself."""
    modes = {kind.points[0].mode for kind in found}
    titles = [kind.title for kind in found]
    return titles if len(modes) > 1 else list(dict.fromkeys([*(_SPOKEN[mode] for mode in modes), *titles]))


_SPOKEN = {
    "strong": "strong scaling",
    "weak": "weak scaling",
    "neither": "with other batches",
}
