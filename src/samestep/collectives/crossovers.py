"""Which all-reduce is made from which size on, as a value; needs no torch.

As text, an algorithm and its successors, each with the bytes from which on it takes over::

    tree,ring:65536    up to 64 KiB by the tree, from there on round the ring

``auto`` is the text that `samestep bench all-reduce --save` has kept for as many ranks and hosts, of
this kind.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from samestep.base import machine
from samestep.base.documents import parse_json
from samestep.base.errors import UsageError
from samestep.base.folders import user_cache
from samestep.base.record import provenance, write_json
from samestep.base.regular_files import read_text
from samestep.base.units import bytes_of, bytes_text

ALGORITHMS = ("native", "naive", "tree", "ring", "halving_doubling", "shared_memory")
"""The names of all-reduces; see `samestep.collectives.algorithms`."""
AUTO = "auto"
"""Stands for what was measured."""


@dataclass(frozen=True, slots=True)
class Crossovers:
    """Which algorithm is taken from which size on.

    Args:
        turns: bytes and name, ascending; the first one is also taken below its size.
    """

    turns: tuple[tuple[int, str], ...]

    @classmethod
    def parse(cls, text: str) -> "Crossovers":
        """Read such as ``ring`` or ``tree,ring:64K``.

        Raises:
            UsageError: an algorithm or a size is none, or the sizes do not rise.
        """
        turns = []
        for number, part in enumerate(text.split(",")):
            name, colon, size = (piece.strip() for piece in part.partition(":"))
            if name not in ALGORITHMS or bool(colon) != bool(number):
                raise UsageError(
                    f"--algorithm {text!r} is none of {', '.join(ALGORITHMS)} and {AUTO}, nor such as "
                    "tree,ring:64K, where one takes over from the other."
                )
            turns.append((bytes_of("--algorithm", size) if size else 0, name))
        if any(one[0] >= other[0] for one, other in pairwise(turns)):
            raise UsageError(f"--algorithm {text!r}: the sizes must rise.")
        return cls(tuple(turns))

    def at(self, nbytes: int) -> str:
        """Return the algorithm for a tensor of so many bytes."""
        return next((name for start, name in reversed(self.turns) if start <= nbytes), self.turns[0][1])

    @property
    def names(self) -> frozenset[str]:
        """The algorithms that are among them."""
        return frozenset(name for _, name in self.turns)

    @property
    def text(self) -> str:
        """What `parse` reads."""
        (_, first), *others = self.turns
        return ",".join([first, *(f"{name}:{start}" for start, name in others)])

    def describe(self) -> str:
        """Return it in words."""
        (_, first), *others = self.turns
        return ", ".join([first, *(f"{name} from {bytes_text(start)}" for start, name in others)])


def check_algorithm(text: str) -> None:
    """Refuse what is neither ``auto`` nor for `Crossovers.parse`.

    Raises:
        UsageError: it is none of them.
    """
    if text != AUTO:
        Crossovers.parse(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What crossovers were measured for.

    Args:
        ranks: how many.
        hosts: on how many hosts.
        device: kind of the device that tensors are on.
        processor: model of rank 0's: nodes of several kinds may have one user's cache.
    """

    ranks: int
    hosts: int
    device: str
    processor: str = field(default_factory=machine.processor)

    def path(self, folder: Path | None = None) -> Path:
        """Return the file that they are kept in.

        Args:
            folder: the cache, if not the user's.
        """
        hosts = f"{self.hosts}-host{'s' * (self.hosts > 1)}"
        model = "-".join(re.findall(r"[a-z0-9.]+", self.processor.lower()))
        name = f"all-reduce-{self.ranks}-ranks-{hosts}-{self.device}-{model}.json"
        return (user_cache() if folder is None else folder) / "crossovers" / name

    def save(self, turns: Sequence[tuple[int, str]], folder: Path | None = None) -> Path:
        """Keep what was measured, for ``auto``; return the file.

        Args:
            turns: as `Crossovers` has them.
            folder: the cache, if not the user's.

        Raises:
            UsageError: it cannot be written.
        """
        path = self.path(folder)
        record = {**provenance(), "algorithm": Crossovers(tuple(turns)).text}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, record)
        except OSError as error:
            raise UsageError(
                f"--save: cannot write {path}: {error.strerror}. Set XDG_CACHE_HOME to a folder that can be "
                "written."
            ) from None
        return path

    def load(self, folder: Path | None = None) -> Crossovers:
        """Return what `save` has kept.

        Args:
            folder: the cache, if not the user's.

        Raises:
            UsageError: there is nothing, or it cannot be read; says what to run.
        """
        path = self.path(folder)
        try:
            record: Any = parse_json(read_text(path))
            return Crossovers.parse(str(record["algorithm"]))
        except FileNotFoundError:
            raise UsageError(
                f"--algorithm auto: nothing was measured for {self._words}. {self._measure}"
            ) from None
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
