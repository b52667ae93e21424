"""Reads MNIST and Fashion-MNIST: 60,000 + 10,000 images each, 28 x 28 grayscale, in the idx format.

An idx file is big-endian: two zero bytes, the type (8: unsigned byte), the number of dimensions, each
dimension as a uint32, then the values, last dimension fastest.

Sources: MNIST, handwritten digits, and the format: Y. LeCun, L. Bottou, Y. Bengio, P. Haffner,
"Gradient-based learning applied to document recognition", Proceedings of the IEEE 86(11), 1998.
Fashion-MNIST, articles of clothing: H. Xiao, K. Rasul, R. Vollgraf, "Fashion-MNIST: a novel image dataset for
benchmarking machine learning algorithms", 2017 (arXiv:1708.07747); MIT license.
"""

from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from samestep.base.errors import DataError
from samestep.base.folders import user_cache
from samestep.training.data import published
from samestep.training.data.image_set import ImageSet, Split, checked_labels
from samestep.training.data.published import PublishedFile, fetch


@dataclass(frozen=True, slots=True, kw_only=True)
class IdxDataSet:
    """A data set of grayscale images, published as four idx files."""

    name: str
    files: dict[Split, tuple[PublishedFile, PublishedFile]]  # the files of images and labels of each split
    classes: tuple[str, ...]
    mean: float
    std: float
    folders: tuple[str, ...]  # folders that are searched for its files, relative to ``--data-dir``
    mirrors: tuple[str, ...]  # URLs of folders with the files, each with a final slash
    about: str = "60,000 + 10,000 images, 28 x 28 grayscale"

    def load(self, split: Split, *, data_dir: Path | None = None) -> ImageSet:
        """See `DataSet.load`."""
        files = self.files[split]
        if data_dir is not None:
            paths = published.locate(files, data_dir, self.folders)
        else:
            cache = user_cache() / self.name
            paths = [fetch(file, self.mirrors, cache) for file in files]
        images, labels = (
            _read(path, file, dimensions) for path, file, dimensions in zip(paths, files, (3, 1), strict=True)
        )
        checked = checked_labels(labels, classes=len(self.classes), where=paths[1])
        return ImageSet(
            name=self.name,
            split=split,
            images=torch.from_numpy(images.copy()).unsqueeze(1),  # (samples, 1, rows, columns)
            labels=torch.from_numpy(checked),
            classes=self.classes,
            mean=(self.mean,),
            std=(self.std,),
        )

    def find(self, *, data_dir: Path | None = None) -> Path | None:
        """See `DataSet.find`."""
        files = [file for split in self.files.values() for file in split]
        try:
            where = data_dir or user_cache() / self.name
            return published.locate(files, where, self.folders if data_dir else (".",))[0].parent
        except DataError:
            return None

    def fetch(self, folder: Path) -> list[Path]:
        """See `DataSet.fetch`."""
        return [fetch(file, self.mirrors, folder) for files in self.files.values() for file in files]


def parse(content: bytes, path: Path, *, dimensions: int) -> NDArray[np.uint8]:
    """Return the array in an idx file of unsigned bytes, read-only.

    Raises:
        DataError: it is no such file, or its length contradicts its header.
    """
    header = 4 + 4 * dimensions
    magic = 0x0800 + dimensions
    number = int.from_bytes(content[:4], "big")
    if len(content) < header or number != magic:
        raise DataError(
            f"{path} is not an idx file of bytes in {dimensions} dimension(s): it begins with {number} "
            f"({len(content):,} bytes in all), expected {magic}. Images and labels may be swapped."
        )
    shape = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, header, 4))
    if len(content) - header != prod(shape):
        raise DataError(
            f"{path} is damaged: its header gives {' x '.join(map(str, shape))} = {prod(shape):,} values, "
            f"and it has {len(content) - header:,}. Download it again."
        )
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)


def _read(path: Path, file: PublishedFile, dimensions: int) -> NDArray[np.uint8]:
    content = published.read(path, most=file.content_bytes)
    values = parse(content, path, dimensions=dimensions)  # first, because its errors are more specific
    published.verify(content, path, name=file.name, sha256=file.content_sha256)
    return values


def _files(*checksums: str) -> dict[Split, tuple[PublishedFile, PublishedFile]]:
    """Return the files of each split, in order: each has its checksum as published, then its content's."""
    left = iter(checksums)

    def file(name: str, content_bytes: int) -> PublishedFile:
        return PublishedFile(
            name=name,
            suffix=".gz",
            sha256=next(left),
            content_sha256=next(left),
            content_bytes=content_bytes,
        )

    splits: tuple[tuple[Split, str, int], ...] = (("train", "train", 60_000), ("test", "t10k", 10_000))
    return {
        split: (
            file(f"{prefix}-images-idx3-ubyte", 16 + count * 28 * 28),
            file(f"{prefix}-labels-idx1-ubyte", 8 + count),
        )
        for split, prefix, count in splits
    }


MNIST = IdxDataSet(
    name="mnist",
    files=_files(
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    classes=tuple("0123456789"),
    mean=0.13066047627384286,
    std=0.3081078038564627,
    folders=("mnist", ".", "MNIST/raw", "raw"),
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "http://yann.lecun.com/exdb/mnist/",
    ),
)

FASHION_MNIST = IdxDataSet(
    name="fashion-mnist",
    files=_files(
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    classes=(
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ),
    mean=0.2860405969887955,
    std=0.35302424451492254,
    folders=("fashion-mnist", ".", "FashionMNIST/raw", "raw"),
    mirrors=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
)
