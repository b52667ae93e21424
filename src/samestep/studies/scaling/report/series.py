"""Groups the points of a study by mode (strong, weak) and variant, each with a letter."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from string import ascii_lowercase

from samestep.studies.scaling.analysis.speedup import one_process_of, series_of
from samestep.studies.scaling.analysis.study import Point, Study


@dataclass(frozen=True, slots=True)
class Kind:
    """The points of one mode and variant, by number of workers, and one worker with the cores of several."""

    letter: str  # short name; empty if the study has only one kind
    name: str
    points: Sequence[Point]
    one_process: Sequence[Point] = field(default_factory=tuple)

    @property
    def rows(self) -> list[Point]:
        """All points, those of one worker first."""
        return [self.points[0], *self.one_process, *self.points[1:]]

    @property
    def title(self) -> str:
        """Letter and name."""
        return f"{self.letter}: {self.name}" if self.letter else self.name

    @property
    def has_speedup(self) -> bool:
        """Whether there are several numbers of workers."""
        return len({point.workers for point in self.points}) > 1

    @property
    def largest(self) -> Point:
        """The point with the most workers, not oversubscribed if possible."""
        return ([point for point in self.points if not point.oversubscribed] or self.points)[-1]


def kinds(study: Study) -> list[Kind]:
    """Return the kinds of `study` in the order of its points."""
    series = series_of(study.points)
    modes = {mode for mode, _ in series}
    found = []
    for number, ((mode, variant), points) in enumerate(series.items()):
        letter = ascii_lowercase[number % 26] if len(series) > 1 else ""
        words = _MODES[mode] if len(modes) > 1 or not variant else ""
        name = ", ".join(filter(None, [words, variant]))
        found.append(Kind(letter, name, points, one_process_of(points, study.one_process)))
    return found


def headings(found: Sequence[Kind]) -> list[str]:
    """Return the titles of kinds, after their common mode if the titles lack it."""
    modes = {kind.points[0].mode for kind in found}
    titles = [kind.title for kind in found]
    return titles if len(modes) > 1 else list(dict.fromkeys([*(_MODES[mode] for mode in modes), *titles]))


_MODES = {
    "strong": "strong scaling",
    "weak": "weak scaling",
    "neither": "with other batches",
}
