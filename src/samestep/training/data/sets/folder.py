"""Reads a folder of images with one folder per class.

::

    DIR/train/cat/1.jpg
    DIR/train/dog/2.png
    DIR/test/cat/3.jpg      or DIR/val/cat/3.jpg

Its name is ``folder`` or ``folder@SIDE``, with ``--data-dir DIR``. Images are resized so that their shorter
side has SIDE pixels (default 224), and cropped to the square in the middle. They are read on demand.
"""

import io
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from samestep.base.errors import DataError, UsageError
from samestep.base.regular_files import read_bytes
from samestep.training.data.image_set import LazyImages, Split, checked_side

_SPEC = re.compile(r"folder(?:@([1-9][0-9]{0,17}))?")
_USUAL_SIDE = 224
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Allowed formats, whatever the suffix: for some of its other formats Pillow runs external programs."""
_FILE_BYTES = 512 << 20
MAX_PIXELS = 2**26
"""Maximum pixels of an image before it is resized (256 MiB as RGB); a small file can expand to any number."""
SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
_SPLITS: dict[Split, tuple[str, ...]] = {"train": ("train",), "test": ("test", "val")}
# The statistics of ImageNet's training set, usual for photographs.
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True, slots=True)
class ReadFile:
    """A reader of image files as RGB."""

    paths: tuple[Path, ...]
    side: int

    def __call__(self, index: int) -> Tensor:
        """Return image `index`, uint8 (3, side, side).

        Raises:
            DataError: the file is not an image, or is damaged.
        """
        from PIL import Image, ImageOps

        path = self.paths[index]
        try:
            content = io.BytesIO(read_bytes(path, most=_FILE_BYTES))
            with Image.open(content, formats=_FORMATS) as image:
                width, height = image.size
                if width * height > MAX_PIXELS:
                    raise ValueError(f"it has {width} x {height} pixels, more than {MAX_PIXELS:,}")
                square = ImageOps.fit(image.convert("RGB"), (self.side, self.side), Image.Resampling.BILINEAR)
        except Exception as error:  # noqa: BLE001 - Pillow's plugins raise anything of a damaged file
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise DataError(f"{path} cannot be read as an image: {why}. Repair or remove it.") from None
        return torch.from_numpy(np.asarray(square).transpose(2, 0, 1).copy())


def load_folder(spec: str, split: Split, *, data_dir: Path | None = None) -> LazyImages:
    """Return the images of one split, in the order of their names, with the classes of the training split.

    Raises:
        UsageError: `spec` has another form, there is no folder, or Pillow is not installed.
        DataError: the folder has another layout.
    """
    match = _SPEC.fullmatch(spec)
    if match is None:
        raise UsageError(f"--data {spec} is invalid; write it as folder@224.")
    if data_dir is None:
        raise UsageError(
            f"--data {spec} needs --data-dir DIR with its images in DIR/train/CLASS and DIR/test/CLASS."
        )
    if find_spec("PIL") is None:
        raise UsageError(f"--data {spec} reads images with Pillow, which is missing: pip install pillow.")
    classes = _classes(_folder_of(data_dir, "train"))
    folder = _folder_of(data_dir, split)
    if (found := _classes(folder)) != classes:
        odd = sorted(set(found) ^ set(classes))[:3]
        raise DataError(
            f"{folder} and {data_dir / 'train'} have different classes: only one has {', '.join(odd)}."
        )
    side = checked_side(int(match[1] or _USUAL_SIDE), spec)
    paths, labels = _images(folder, classes)
    return LazyImages(
        name=spec,
        split=split,
        read=ReadFile(paths, side),
        labels=labels,
        classes=classes,
        shape=(3, side, side),
        mean=_MEAN,
        std=_STD,
    )


def _folder_of(data_dir: Path, split: Split) -> Path:
    for name in _SPLITS[split]:
        if (data_dir / name).is_dir():
            return data_dir / name
    wanted = " nor ".join(str(data_dir / name) for name in _SPLITS[split])
    raise DataError(f"there is no {wanted}. Put the images in DIR/train/CLASS and DIR/test/CLASS.")


def _classes(folder: Path) -> tuple[str, ...]:
    classes = tuple(sorted(path.name for path in folder.iterdir() if path.is_dir()))
    if not classes:
        raise DataError(f"{folder} contains no folders. Make one folder per class.")
    return classes


def _images(folder: Path, classes: tuple[str, ...]) -> tuple[tuple[Path, ...], tuple[int, ...]]:
    found = [
        (path, label)
        for label, name in enumerate(classes)
        for path in sorted((folder / name).rglob("*"))
        if path.suffix.lower() in SUFFIXES
    ]
    if not found:
        raise DataError(f"{folder} contains no images ({', '.join(sorted(SUFFIXES))}) in its folders.")
    paths, labels = zip(*found, strict=True)
    return paths, labels
