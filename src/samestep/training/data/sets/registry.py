"""Lists the data sets by name; a new one needs a module in ``sets/`` and a line here."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from samestep.base.errors import UsageError
from samestep.training.data.image_set import Images, ImageSet, Split
from samestep.training.data.sets.cifar10 import CIFAR10
from samestep.training.data.sets.digits import DIGITS
from samestep.training.data.sets.mnist import FASHION_MNIST, MNIST
from samestep.training.data.sets.with_parameters import load_folder, load_synthetic, load_torchvision


class DataSet(Protocol):
    """A published data set."""

    @property
    def name(self) -> str:
        """Its name on the command line."""

    @property
    def about(self) -> str:
        """A short description."""

    def load(self, split: Split, *, data_dir: Path | None = None) -> ImageSet:
        """Return one split, on the CPU, verified by its published checksums.

        Args:
            split: the split.
            data_dir: a folder with its files; None downloads them (once) to the user's cache.

        Raises:
            DataError: files are missing, damaged or not the published ones, or cannot be downloaded.
        """

    def find(self, *, data_dir: Path | None = None) -> Path | None:
        """Return the folder with all of its files, without reading them; None if some are missing."""

    def fetch(self, folder: Path) -> list[Path]:
        """Download all published files to `folder`; return their paths."""


DATA_SETS: dict[str, DataSet] = {
    data_set.name: data_set for data_set in (DIGITS, MNIST, FASHION_MNIST, CIFAR10)
}
"""The published data sets."""

KINDS: Mapping[str, Callable[..., Images]] = {
    "synthetic": load_synthetic,
    "folder": load_folder,
    "torchvision": load_torchvision,
}
"""Types of data sets with parameters in their name, by the part before ``:`` or ``@``."""


def load(name: str, split: Split, *, data_dir: Path | None = None) -> Images:
    """Return one split of the data set called `name`, a key of `DATA_SETS` or a name of one of `KINDS`.

    The arguments and errors are those of `DataSet.load`.

    Raises:
        UsageError: there is no such data set.
    """
    if name in DATA_SETS:
        return DATA_SETS[name].load(split, data_dir=data_dir)
    kind = name.replace("@", ":").partition(":")[0]
    if kind not in KINDS:
        raise UsageError(
            f"there is no data set {name!r}. Use one of: {', '.join(DATA_SETS)}, synthetic, "
            "synthetic:3x224x224,1000, folder, torchvision:NAME."
        )
    return KINDS[kind](name, split, data_dir=data_dir)
