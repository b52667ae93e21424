"""Defines the parts of models: a few source lines each, chosen by weight and numbered by an index."""

from dataclasses import dataclass, replace
from random import Random
from textwrap import dedent, indent


@dataclass(frozen=True)
class Part:
    """Source lines that a model is composed of.

    In these lines `_N` stands for the index of the part, `BATCH` and `TIME` for the dimensions of samples
    and of time steps, and `BATCH_FIRST` for whether samples come first.

    Attributes:
        name: the name for the script's first line.
        init: lines of `__init__`.
        forward: lines of `forward`, which read and assign `h`.
        weight: the relative frequency of this part.
        smallest: the number of samples in the smallest batch on which it can train.
    """

    name: str
    init: str = ""
    forward: str = ""
    weight: float = 1.0
    smallest: int = 1

    def __post_init__(self):
        object.__setattr__(self, "init", dedent(self.init).strip("\n"))
        object.__setattr__(self, "forward", dedent(self.forward).strip("\n"))

    def at(self, index):
        """Return the part with names that contain this index."""
        place = f"_{index}"
        return replace(self, init=self.init.replace("_N", place), forward=self.forward.replace("_N", place))


@dataclass(frozen=True)
class Wrapper:
    """Lines around the forward lines of a part: a residual, a gate, a condition.

    Attributes:
        name: the name for the script's first line.
        init: lines of `__init__`.
        condition: the condition under which the part is computed; empty for always.
        ending: lines after the part; they read `kept_N`, the input of the part.
        weight: the relative frequency of this wrapper.
    """

    name: str
    init: str = ""
    condition: str = ""
    ending: str = ""
    weight: float = 1.0

    def around(self, part):
        """Return the part within this wrapper."""
        lines = [part.forward]
        if self.ending:
            lines = ["kept_N = h", *lines, self.ending]
        body = "\n".join(lines)
        if self.condition:
            body = f"if {self.condition}:\n{indent(body, '    ')}"
        name = f"{part.name} {self.name}".strip()
        return replace(part, name=name, init=f"{part.init}\n{self.init}".strip("\n"), forward=body)


def choose(rng: Random, parts):
    """Return one of `parts`, by weight."""
    return rng.choices(parts, [part.weight for part in parts])[0]


def chance(rng: Random, probability):
    """Return True with this probability."""
    return rng.random() < probability


def lines_of(*texts):
    """Return non-empty texts, joined by newlines."""
    return "\n".join(text for text in texts if text)
