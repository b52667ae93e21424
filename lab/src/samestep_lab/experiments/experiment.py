"""Defines experiments, the ranks and data that they run on, and their outcomes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from math import nan, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, TypeAlias

from samestep.report.drawing import Chart
from samestep.scaling.analysis.points import student_t

Ranks: TypeAlias = Callable[..., list[Any]]
"""Runs ``fn(world, *args)`` on N ranks and returns their results, as `samestep.spawn` and `run_ranks` do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The ranks and the data of an experiment."""

    workers: int
    ranks: Ranks  # called as ``ranks(fn, n, *args)``
    data: str = "digits"
    data_dir: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of texts."""

    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of an experiment."""

    tables: Sequence[Table]
    measured: str  # one or two sentences with the figures that answer the question
    values: Mapping[str, Any]  # the figures by name, for JSON
    charts: Sequence[Chart] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """An experiment; its function ``run(setup)`` is in the module of its name."""

    name: str
    question: str
    does: str  # the actions of the experiment, in one sentence
    expect: str  # the expected result
    why: str  # the reason for it
    workers: int = 2  # number of ranks by default
    least: int = 1  # smallest number of ranks
    most: int = 64  # largest number of ranks, which are processes of one machine
    trains: bool = False  # whether it uses a data set

    def run(self, setup: Setup) -> Outcome:
        """Run the experiment."""
        module = import_module(f"samestep_lab.experiments.{self.name.replace('-', '_')}")
        outcome: Outcome = module.run(setup)
        return outcome


def mean_and_half(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean, and half the 95 % interval by Student's t; NaN for the latter with one value.

    >>> mean_and_half([1.0, 1.0, 1.0])
    (1.0, 0.0)
    """
    if len(values) < 2:
        return values[0], nan
    return fmean(values), student_t(len(values) - 1) * stdev(values) / sqrt(len(values))


def interval_text(values: Sequence[float], *, scale: float = 1.0, unit: str = "") -> str:
    """Return mean and half interval as text.

    >>> interval_text([0.97, 0.97], scale=100, unit=" %")
    '97.00 +- 0.00 %'
    """
    mean, half = mean_and_half(values)
    return f"{mean * scale:.2f} +- {half * scale:.2f}{unit}"


def difference_text(values: Sequence[float], references: Sequence[float]) -> str:
    """Return mean and half interval of the differences of pairs of shares, in points.

    >>> difference_text([0.97, 0.98], [0.95, 0.96])
    '2.00 +- 0.00'
    """
    return interval_text(
        [value - reference for value, reference in zip(values, references, strict=True)], scale=100
    )
