"""What one rank of a script was seen to do, as data: written line by line, so that a crash loses nothing."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple


@dataclass(slots=True, kw_only=True)
class Step:
    """One optimizer step; of a script without optimizers, one backward.

    Args:
        index: which one, from 0, of all optimizers' together.
        optimizer: which one stepped, in the order of their first steps.
        samples: a key of each sample that models were called with in training since the step before.
        evaluated: a key of each sample that they were called with otherwise since then.
        losses: the values that were differentiated since then.
        learning_rates: of the parameter groups.
        gradient_norm: before the step, over all parameters of the optimizer.
        gradient: their sketch.
        before: sketch of the parameters before the step.
        after: and after it.
        backwards: backwards since the step before.
        printed: how many characters had been printed.
    """

    index: int
    optimizer: int = 0
    samples: list[float] = field(default_factory=list)
    evaluated: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    learning_rates: list[float] = field(default_factory=list)
    gradient_norm: float = 0.0
    gradient: list[float] = field(default_factory=list)
    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    backwards: int = 0
    printed: int = 0


class Held(NamedTuple):
    """A parameter that an optimizer holds."""

    name: str
    """In the models called, and which of them; empty where it is in none."""
    shape: tuple[int, ...]
    group: int


@dataclass(slots=True, kw_only=True)
class Facts:
    """What else was seen, once for the whole run.

    Args:
        rank: whose trace this is.
        met: ranks of the largest process group there was; 1 where there was none.
        epsilon: of the coarsest type that anything was computed in.
        parameter_epsilon: of the coarsest type of a parameter that was trained.
        batch_norm: whether batch norms took statistics in training.
        drew: whether models drew random numbers when called, or the loop between a batch and its backward.
        stream: a digest of where the first of these draws began.
        augmented: whether data sets drew random numbers when asked for a sample.
        repeated_epochs: how many epochs of training a `DistributedSampler` shuffled as one before.
        wrapped: whether models were called through DistributedDataParallel.
        parameters: what each optimizer holds, in the order of their first steps.
        evaluated: a key of each sample of evaluations after the last step.
        printed: stdout.
        ended: "steps" where as many were made as were asked for, "end" where the script ended before,
            otherwise the name of the error.
        message: its text.
    """

    rank: int
    met: int = 1
    epsilon: float = 0.0
    parameter_epsilon: float = 0.0
    batch_norm: bool = False
    drew: bool = False
    stream: int = 0
    augmented: bool = False
    repeated_epochs: int = 0
    wrapped: bool = False
    parameters: list[list[Held]] = field(default_factory=list)
    evaluated: list[float] = field(default_factory=list)
    printed: str = ""
    ended: str = "killed"
    message: str = ""


@dataclass(frozen=True, slots=True)
class Trace:
    """Everything that one rank was seen to do."""

    facts: Facts
    steps: Sequence[Step]
    begun: int
    """How many steps it began."""


class Writer:
    """Appends to the trace of one rank.

    Args:
        path: its file.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")

    def step(self, step: Step) -> None:
        """Write a step down."""
        self._write({"step": asdict(step)})

    def begin(self, step: int) -> None:
        """Write down that a step has begun."""
        self._write({"begun": step})

    def end(self, facts: Facts) -> None:
        """Write down how it ended."""
        self._write({"facts": asdict(facts)})

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def read(path: Path, *, rank: int) -> Trace:
    """Return the trace of a rank; an empty one if it left none."""
    facts, steps, begun = Facts(rank=rank), [], 0
    for line in _lines(path):
        if "step" in line:
            steps.append(Step(**line["step"]))
        elif "begun" in line:
            begun = line["begun"] + 1
        else:
            facts = Facts(**line["facts"])
            facts.parameters = [
                [Held(name, tuple(shape), group) for name, shape, group in held] for held in facts.parameters
            ]
    return Trace(facts, steps, begun)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield what was written whole."""
    if not path.exists():
        return
    whole = path.read_text(encoding="utf-8").rpartition("\n")[0]
    yield from map(json.loads, whole.splitlines())
