"""Parses and stores the choice of all-reduce algorithms by tensor size; needs no torch.

As text, the choice is an algorithm and its successors, each with the size in bytes from which it is used::

    tree,ring:65536    the tree below 64 KiB, the ring from there on

``auto`` stands for the text that `samestep bench all-reduce --save` has stored for the same numbers of ranks
and hosts, device and processor model.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from samestep.base.errors import UsageError
from samestep.base.folders import user_cache
from samestep.base.machine import description
from samestep.base.record import provenance, write_json
from samestep.base.regular_files import read_text
from samestep.base.units import bytes_of, bytes_text
from samestep.base.untrusted_documents import parse_json

ALGORITHMS = ("native", "naive", "tree", "ring", "halving_doubling", "direct", "shared_memory")
"""Names of all-reduce algorithms; see `samestep.ranks.collectives.algorithms`."""
AUTO = "auto"
"""Stands for the measured choice."""


@dataclass(frozen=True, slots=True)
class Crossovers:
    """Algorithms, each with the size in bytes from which it is used; the first also below its size."""

    turns: tuple[tuple[int, str], ...]

    @classmethod
    def parse(cls, text: str) -> "Crossovers":
        """Parse a text such as ``ring`` or ``tree,ring:64K``.

        Raises:
            UsageError: an algorithm or a size is invalid, or the sizes do not rise.
        """
        turns = []
        for number, part in enumerate(text.split(",")):
            name, colon, size = (piece.strip() for piece in part.partition(":"))
            if name not in ALGORITHMS or bool(colon) != bool(number):
                raise UsageError(
                    f"--algorithm {text!r} is none of {', '.join(ALGORITHMS)} and {AUTO}; to change the "
                    "algorithm with the tensor size, write for instance tree,ring:64K."
                )
            turns.append((bytes_of("--algorithm", size) if size else 0, name))
        if any(one[0] >= other[0] for one, other in pairwise(turns)):
            raise UsageError(f"--algorithm {text!r}: the sizes do not rise; sort them.")
        return cls(tuple(turns))

    def at(self, nbytes: int) -> str:
        """Return the algorithm for a tensor of `nbytes` bytes."""
        return next((name for start, name in reversed(self.turns) if start <= nbytes), self.turns[0][1])

    @property
    def names(self) -> frozenset[str]:
        """Names of all algorithms in this choice."""
        return frozenset(name for _, name in self.turns)

    @property
    def text(self) -> str:
        """The text from which `parse` makes an equal object."""
        (_, first), *others = self.turns
        return ",".join([first, *(f"{name}:{start}" for start, name in others)])

    def describe(self) -> str:
        """Return this choice as words for people."""
        (_, first), *others = self.turns
        return ", ".join([first, *(f"{name} from {bytes_text(start)}" for start, name in others)])


def check_algorithm(text: str) -> None:
    """Check that a text is ``auto`` or one that `Crossovers.parse` accepts.

    Raises:
        UsageError: it is neither.
    """
    if text != AUTO:
        Crossovers.parse(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The setup that a measured choice is valid for."""

    ranks: int  # how many
    hosts: int  # on how many hosts
    device: str  # kind of the device that tensors are on
    processor: str = field(default_factory=description.processor)  # model of rank 0's processor

    def path(self) -> Path:
        """Return the file of the measured choice."""
        hosts = f"{self.hosts}-host{'s' * (self.hosts > 1)}"
        model = "-".join(re.findall(r"[a-z0-9.]+", self.processor.lower()))
        name = f"all-reduce-{self.ranks}-ranks-{hosts}-{self.device}-{model}.json"
        return user_cache() / "crossovers" / name

    def save(self, turns: Sequence[tuple[int, str]]) -> Path:
        """Store the measured choice for ``auto``; return the file.

        Raises:
            UsageError: the file cannot be written.
        """
        path = self.path()
        record = {**provenance(), "algorithm": Crossovers(tuple(turns)).text}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, record)
        except OSError as error:
            raise UsageError(
                f"--save: cannot write {path}: {error.strerror}. Set XDG_CACHE_HOME to a folder that is "
                "writable."
            ) from None
        return path

    def load(self) -> Crossovers:
        """Return the choice that `save` has stored.

        Raises:
            UsageError: there is no such file, or it cannot be read; the message has the command to run.
        """
        path = self.path()
        try:
            record: Any = parse_json(read_text(path))
            return Crossovers.parse(str(record["algorithm"]))
        except FileNotFoundError:
            raise UsageError(f"--algorithm auto: no measurement for {self._words}. {self._measure}") from None
        except (OSError, ValueError, KeyError, TypeError) as error:  # a UsageError is a ValueError
            raise UsageError(f"--algorithm auto: cannot read {path} ({error}). {self._measure}") from None

    @property
    def _words(self) -> str:
        hosts = "one host" if self.hosts == 1 else f"{self.hosts} hosts"
        return f"{self.ranks} ranks on {hosts} with tensors of {self.device} ({self.processor})"

    @property
    def _measure(self) -> str:
        if self.hosts == 1:
            return f"Measure once with: samestep bench all-reduce -n {self.ranks} --save"
        return "Measure once, under the same launcher, with: samestep bench all-reduce --save"
