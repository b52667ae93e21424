"""Reads the module calls that lead to one step on one rank, with their values and gradients."""

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from samestep.verify.tensor_summary import RowSummary
from samestep.verify.trace import read_records

Role: TypeAlias = Literal["input", "output"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a module."""

    index: int  # number of the call, in the order of beginnings
    parent: int | None  # index of the call that it is part of; None for a top-level call
    root: int  # number of the top-level module, in the order of first calls
    # number of the trained model that the top-level module belongs to; None if it is not trained
    model: int | None
    name: str  # qualified name in the top-level module; empty for that itself
    kind: str  # its class
    number: int  # number of the call among those of this module
    # file and line of the class's forward; those of the call, if the class is of a library
    place: tuple[str, int]
    called: tuple[str, int]  # file and line of the script that called it
    # sketch of the parameters of a top-level module at the call; empty for other modules
    parameters: list[float] = field(default_factory=list)


class Key(NamedTuple):
    """Identifies a value in the records of all runs."""

    root: int
    name: str
    number: int
    role: Role
    leaf: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A tensor that a call received or returned."""

    call: int  # index of the call
    role: Role  # whether it is an input or an output
    leaf: int  # its position among these
    tensor: int | None  # number of the tensor in autograd's graph; None if it has no gradient
    batch: int  # number of the batch that it was computed from, from 0; -1 if no batch is known
    summary: RowSummary  # its values


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """The gradient of a tensor."""

    tensor: int  # number of the tensor
    backward: int  # number of the backward in the step
    summary: RowSummary  # its values


@dataclass(kw_only=True)
class ModuleRecord:
    """The module calls that lead to one step on one rank; everything is in the order of execution."""

    calls: list[Call] = field(default_factory=list)  # the calls
    values: list[Value] = field(default_factory=list)  # their inputs and outputs
    gradients: list[Gradient] = field(default_factory=list)  # the gradients of these
    batches: list[list[float]] = field(default_factory=list)  # the sample keys of each batch

    def key(self, value: Value) -> Key:
        """Return the key of a value."""
        call = self.calls[value.call]
        return Key(call.root, call.name, call.number, value.role, value.leaf)

    def samples(self, value: Value) -> list[float]:
        """Return the sample keys of the batch that a value was computed from."""
        return self.batches[value.batch] if 0 <= value.batch < len(self.batches) else []

    @cached_property
    def by_key(self) -> dict[Key, Value]:
        """The values by their keys."""
        return {self.key(value): value for value in self.values}

    @cached_property
    def leaves(self) -> Counter[Key]:
        """The number of inputs and of outputs of each call, by the key of the first one."""
        return Counter(self.key(value)._replace(leaf=0) for value in self.values)

    @cached_property
    def first_values(self) -> dict[int, Value]:
        """The first value that has each tensor."""
        found: dict[int, Value] = {}
        for value in self.values:
            if value.tensor is not None:
                found.setdefault(value.tensor, value)
        return found

    @cached_property
    def gradients_by_key(self) -> dict[tuple[Key, int], Gradient]:
        """The gradients by the key of the tensor's first value, and the backward."""
        first = self.first_values
        return {(self.key(first[one.tensor]), one.backward): one for one in self.gradients}


def read_modules(path: Path) -> ModuleRecord:
    """Return the record of a rank; an empty one if the file is missing."""
    record = ModuleRecord()
    for kind, content in read_records(path):
        if kind == "call":
            places = {name: tuple(content[name]) for name in ("place", "called")}
            record.calls.append(Call(**{**content, **places}))
        elif kind == "batch":
            record.batches.append(content)
        else:
            content["summary"] = _summary(content["summary"])
            if kind == "value":
                record.values.append(Value(**content))
            else:
                record.gradients.append(Gradient(**content))
    return record


def _summary(content: dict[str, Any]) -> RowSummary:
    rows = {int(dim): rows for dim, rows in content["rows"].items()}
    return RowSummary(content["shape"], rows)
