"""The data sets by name. Adding one: a file in ``sets/`` and a line here."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from samestep.base.errors import UsageError
from samestep.data.image_set import Images, ImageSet, Split
from samestep.data.sets.cifar10 import CIFAR10
from samestep.data.sets.digits import DIGITS
from samestep.data.sets.fashion_mnist import FASHION_MNIST
from samestep.data.sets.folder import load_folder
from samestep.data.sets.mnist import MNIST
from samestep.data.sets.synthetic import load_synthetic
from samestep.data.sets.torchvision import load_torchvision


class DataSet(Protocol):
    """What a published data set can do."""

    @property
    def name(self) -> str:
        """What it is called on the command line."""

    def load(self, split: Split, *, data_dir: Path | None = None, cache_dir: Path | None = None) -> ImageSet:
        """Return one split, on the CPU, checked against what was published."""

    @property
    def about(self) -> str:
        """What it holds, in a few words."""

    def find(self, *, data_dir: Path | None = None, cache_dir: Path | None = None) -> Path | None:
        """Return the folder in which all of its files lie; None where some are missing. Nothing is read."""

    def fetch(self, folder: Path) -> list[Path]:
        """Download what is published into `folder`; return the files."""


DATA_SETS: dict[str, DataSet] = {
    data_set.name: data_set for data_set in (DIGITS, MNIST, FASHION_MNIST, CIFAR10)
}
"""Those that were published once and for all."""

KINDS: Mapping[str, Callable[..., Images]] = {
    "synthetic": load_synthetic,
    "folder": load_folder,
    "torchvision": load_torchvision,
}
"""Those that have more to their name: what stands before ``:`` or ``@``."""


def load(name: str, split: Split, *, data_dir: Path | None = None, cache_dir: Path | None = None) -> Images:
    """Return one split of the data set called `name`, on the CPU.

    Args:
        name: a key of `DATA_SETS`, or a spelling of one of `KINDS`.
        split: which one.
        data_dir: a folder that holds its files; None downloads them, once per node.
        cache_dir: where downloads are kept; None is the user's cache.

    Raises:
        UsageError: there is no such data set.
        DataError: its files are missing, damaged or not the published ones, or cannot be downloaded.
    """
    if name in DATA_SETS:
        return DATA_SETS[name].load(split, data_dir=data_dir, cache_dir=cache_dir)
    kind = name.replace("@", ":").partition(":")[0]
    if kind not in KINDS:
        raise UsageError(
            f"no data set is called {name!r}. Use one of: {', '.join(DATA_SETS)}, synthetic, "
            "synthetic:3x224x224,1000, folder, torchvision:NAME."
        )
    return KINDS[kind](name, split, data_dir=data_dir, cache_dir=cache_dir)
