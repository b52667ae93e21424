"""The data sets by name. Adding one: a file in ``sets/`` and a line here."""

from pathlib import Path
from typing import Protocol

from samestep.base.errors import UsageError
from samestep.data.image_set import ImageSet, Split
from samestep.data.sets.digits import DIGITS
from samestep.data.sets.mnist import MNIST


class DataSet(Protocol):
    """What a named data set can do."""

    @property
    def name(self) -> str:
        """What it is called on the command line."""

    def load(self, split: Split, *, data_dir: Path | None = None, cache_dir: Path | None = None) -> ImageSet:
        """Return one split, on the CPU, checked against what was published."""


DATA_SETS: dict[str, DataSet] = {data_set.name: data_set for data_set in (DIGITS, MNIST)}


def load(name: str, split: Split, *, data_dir: Path | None = None, cache_dir: Path | None = None) -> ImageSet:
    """Return one split of the data set called `name`, on the CPU.

    Args:
        name: a key of `DATA_SETS`.
        split: which one.
        data_dir: a folder that holds its files; None downloads them, once per node.
        cache_dir: where downloads are kept; None is the user's cache.

    Raises:
        UsageError: there is no such data set.
        DataError: its files are missing, damaged or not the published ones, or cannot be downloaded.
    """
    if name not in DATA_SETS:
        raise UsageError(f"no data set is called {name!r}. Use one of: {', '.join(DATA_SETS)}.")
    return DATA_SETS[name].load(split, data_dir=data_dir, cache_dir=cache_dir)
