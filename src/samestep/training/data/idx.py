"""Reads data sets in the idx format of MNIST.

An idx file is big-endian: two zero bytes, the type (8: unsigned byte), the number of dimensions, each
dimension as a uint32, then the values, last dimension fastest. Source: the description on MNIST's page
(Y. LeCun, C. Cortes, C. Burges, "The MNIST database of handwritten digits").
"""

from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from samestep.base.errors import DataError
from samestep.base.user_folders import user_cache
from samestep.training.data import published
from samestep.training.data.download import fetch
from samestep.training.data.image_set import ImageSet, Split
from samestep.training.data.labels import checked_labels
from samestep.training.data.published import PublishedFile


@dataclass(frozen=True, slots=True, kw_only=True)
class IdxDataSet:
    """A data set of grayscale images, published as four idx files."""

    name: str
    files: dict[Split, tuple[PublishedFile, PublishedFile]]
    """The files of images and labels of each split."""
    classes: tuple[str, ...]
    mean: float
    std: float
    folders: tuple[str, ...]
    """Folders that are searched for its files, relative to ``--data-dir``."""
    mirrors: tuple[str, ...]
    """URLs of folders with the files, each with a final slash."""

    def load(self, split: Split, *, data_dir: Path | None = None, cache_dir: Path | None = None) -> ImageSet:
        """Return one split, verified by its published checksums.

        Args:
            split: the split.
            data_dir: a folder with the files; None downloads them (once).
            cache_dir: folder of downloads; None is the user's cache.

        Raises:
            DataError: files are missing, damaged or not the published ones, or cannot be downloaded.
        """
        files = self.files[split]
        if data_dir is not None:
            paths = published.locate(files, data_dir, self.folders)
        else:
            cache = (cache_dir or user_cache()) / self.name
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

    @property
    def about(self) -> str:
        """A short description."""
        return "60,000 + 10,000 images, 28 x 28 grayscale"

    def find(self, *, data_dir: Path | None = None, cache_dir: Path | None = None) -> Path | None:
        """Return the folder with all of its files, without reading them; None if some are missing."""
        files = [file for split in self.files.values() for file in split]
        try:
            return published.locate(
                files,
                data_dir or (cache_dir or user_cache()) / self.name,
                self.folders if data_dir else (".",),
            )[0].parent
        except DataError:
            return None

    def fetch(self, folder: Path) -> list[Path]:
        """Download all published files to `folder`; return their paths.

        Raises:
            DataError: a file cannot be downloaded.
        """
        return [fetch(file, self.mirrors, folder) for files in self.files.values() for file in files]


def parse(content: bytes, path: Path, *, dimensions: int) -> NDArray[np.uint8]:
    """Return the array in an idx file of unsigned bytes, read-only.

    Args:
        content: the whole file, decompressed.
        path: of the file, for messages.
        dimensions: the number of dimensions it must have.

    Raises:
        DataError: it is no such file, or its length contradicts its header.
    """
    header = 4 + 4 * dimensions
    magic = 0x0800 + dimensions
    found = int.from_bytes(content[:4], "big")
    if len(content) < header or found != magic:
        raise DataError(
            f"{path} is not an idx file of bytes in {dimensions} dimension(s): it begins with {found} "
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
    published.verify(content, file, path)
    return values
