"""Defines the result of a check and that of a rank, and the store through which ranks exchange them."""

import json
import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from samestep.base.polling import holds_within
from samestep.ranks.rendezvous.store import Store

H = TypeVar("H", bound=Hashable)
Row: TypeAlias = tuple[str, str]
"""A name and a value; a row with an empty name continues the previous row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Problem or note for the user."""

    text: str  # description, and what to do
    hurts: bool = True  # whether it makes a run fail, compute something wrong, or slow


def problem(text: str) -> Finding:
    """Return a finding that makes a run fail, compute something wrong, or slow."""
    return Finding(text=text)


def note(text: str) -> Finding:
    """Return a finding that is only information."""
    return Finding(text=text, hurts=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Result of one check."""

    rows: Sequence[Row] = ()  # for readers, in the order in which they are printed
    findings: Sequence[Finding] = ()  # problems and notes
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON data, which the ranks compare


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult(Result):
    """Results of all checks of one rank."""

    rank: int  # number of the rank
    size: int  # number of ranks of the job, according to its launcher
    host: str  # the name of its host
    summary: str  # the line that sums up launcher, device, back end and threads

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "RankResult":
        """Return the result from the JSON data of `dataclasses.asdict`."""
        rows = [(name, value) for name, value in record["rows"]]
        findings = [Finding(**fields) for fields in record["findings"]]
        return cls(**{**record, "rows": rows, "findings": findings})


def joined(results: Iterable[Result]) -> Result:
    """Return several results as one, in their order."""
    every = list(results)
    return Result(
        rows=[row for result in every for row in result.rows],
        findings=[finding for result in every for finding in result.findings],
        facts={name: fact for result in every for name, fact in result.facts.items()},
    )


def rows(name: str, values: Iterable[str]) -> list[Row]:
    """Return a row for each value, of which only the first one has the name."""
    return [(name if i == 0 else "", value) for i, value in enumerate(values)]


def grouped(values: Mapping[int, H]) -> dict[H, list[int]]:
    """Return the ranks of each value."""
    ranks: dict[H, list[int]] = {}
    for rank, value in values.items():
        ranks.setdefault(value, []).append(rank)
    return ranks


def matrix(
    corner: str, numbers: Sequence[int], cells: Mapping[tuple[int, int], str], *, width: int = 8
) -> list[str]:
    """Return the lines of a table of pairs of `numbers`, from row to column; ``?`` is an unknown cell."""
    lines = [f"{corner:<6}" + "".join(f"{number:>{width}}" for number in numbers)]
    for a in numbers:
        row = ["-" if a == b else cells.get((a, b), "?") for b in numbers]
        lines.append(f"{a:>6}" + "".join(f"{cell:>{width}}" for cell in row))
    return lines


class ResultStore:
    """JSON data by key that all ranks can read, in torch's key-value store; it ends when rank 0 exits."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def post(self, key: str, value: object) -> None:
        """Store JSON data under a key.

        Raises:
            ConnectionError: rank 0 left.
        """
        try:
            self._store.set(f"doctor/{key}", json.dumps(value))
        except RuntimeError as error:  # torch raises it if the store is gone
            raise ConnectionError(f"rank 0 left: {error}") from error

    def read(self, key: str, *, deadline: float) -> Any:
        """Return the value once it is stored; None if it is not by `deadline` (of `time.monotonic`).

        Raises:
            ConnectionError: rank 0 left.
        """
        name, left = f"doctor/{key}", deadline - time.monotonic()
        try:
            if not holds_within(lambda: self._store.check([name]), left, least_s=0.001, most_s=0.1):
                return None
            return json.loads(self._store.get(name))
        except RuntimeError as error:
            raise ConnectionError(f"rank 0 left: {error}") from error

    def read_all(self, key: str, ranks: Iterable[int], *, deadline: float) -> dict[int, Any]:
        """Return what each rank has posted under `key`; None for a rank that has not by `deadline`."""
        return {rank: self.read(f"{key}/{rank}", deadline=deadline) for rank in ranks}
