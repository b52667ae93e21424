"""Provides the data sets with parameters in their names: synthetic ones, a folder of images, torchvision's.

``synthetic`` or ``synthetic:CxHxW,CLASSES,SAMPLES`` are random images, for measurements of training speed;
CLASSES and SAMPLES are optional. The images of the others are read on demand.

``folder`` or ``folder@SIDE``, with ``--data-dir DIR``, has one folder per class::

    DIR/train/cat/1.jpg
    DIR/train/dog/2.png
    DIR/test/cat/3.jpg      or DIR/val/cat/3.jpg

Images are resized so that their shorter side has SIDE pixels (default 224), and cropped to the square in the
middle.

``torchvision:NAME`` is a classification data set of torchvision, such as ``torchvision:CIFAR100``.
``torchvision:NAME@SIDE`` resizes the images to squares of SIDE pixels; without it all must have the size of
the first one.
"""

import inspect
import io
import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samestep.base.errors import DataError, UsageError
from samestep.base.folders import user_cache
from samestep.base.machine.description import machine
from samestep.base.regular_files import read_bytes
from samestep.base.units import bytes_text
from samestep.training.data.image_set import ImageSet, LazyImages, Split, checked_labels
from samestep.training.data.published import download_lock

MAX_SIDE = 8192
"""Maximum side of images in pixels; a square RGB image of this side has 192 MiB."""


def _checked_side(side: int, spec: str) -> int:
    """Return the side of square images, in pixels.

    Raises:
        UsageError: it is larger than `MAX_SIDE`.
    """
    if side > MAX_SIDE:
        raise UsageError(f"--data {spec}: images have {side} pixels a side; use {MAX_SIDE} or fewer.")
    return side


_FOLDER_SPEC = re.compile(r"folder(?:@([1-9][0-9]{0,17}))?")
_USUAL_SIDE = 224  # pixels, as usual with ImageNet
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Allowed formats, whatever the suffix: for some of its other formats Pillow runs external programs."""
_FILE_BYTES = 512 << 20  # maximum bytes of an image file
MAX_PIXELS = 2**26
"""Maximum pixels of an image before it is resized (256 MiB as RGB); a small file can expand to any number."""
SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
_SPLITS: dict[Split, tuple[str, ...]] = {"train": ("train",), "test": ("test", "val")}
# The statistics of ImageNet's training set, usual for photographs.
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True, slots=True)
class _ReadFile:
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
    match = _FOLDER_SPEC.fullmatch(spec)
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
    if (split_classes := _classes(folder)) != classes:
        odd = sorted(set(split_classes) ^ set(classes))[:3]
        raise DataError(
            f"{folder} and {data_dir / 'train'} have different classes: only one has {', '.join(odd)}."
        )
    side = _checked_side(int(match[1] or _USUAL_SIDE), spec)
    paths, labels = _images_of(folder, classes)
    return LazyImages(
        name=spec,
        split=split,
        read=_ReadFile(paths, side),
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


def _images_of(folder: Path, classes: tuple[str, ...]) -> tuple[tuple[Path, ...], tuple[int, ...]]:
    images = [
        (path, label)
        for label, name in enumerate(classes)
        for path in sorted((folder / name).rglob("*"))
        if path.suffix.lower() in SUFFIXES
    ]
    if not images:
        raise DataError(f"{folder} contains no images ({', '.join(sorted(SUFFIXES))}) in its folders.")
    paths, labels = zip(*images, strict=True)
    return paths, labels


_TORCHVISION_SPEC = re.compile(r"torchvision:(\w+)(?:@([1-9][0-9]{0,17}))?")
_SAMPLED = 1000  # number of images from which mean and standard deviation are computed


@dataclass(frozen=True, slots=True)
class _ReadSample:
    """A reader of a data set whose items are (PIL image, label)."""

    data: Any
    side: int | None

    def __call__(self, index: int) -> Tensor:
        """Return image `index`, uint8 (channels, height, width)."""
        from PIL import ImageOps

        image, _ = self.data[index]
        if self.side is not None:
            image = ImageOps.fit(image, (self.side, self.side))
        pixels = np.asarray(image)
        pixels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
        return torch.from_numpy(pixels.astype(np.uint8))


def load_torchvision(spec: str, split: Split, *, data_dir: Path | None = None) -> LazyImages:
    """Return one split of a data set of torchvision; None as `data_dir` downloads its files.

    Raises:
        UsageError: torchvision is not installed, or has no such data set.
        DataError: the files are missing, or cannot be downloaded.
    """
    match = _TORCHVISION_SPEC.fullmatch(spec)
    if match is None:
        raise UsageError(
            f"--data {spec} is invalid; write it as torchvision:CIFAR100 or torchvision:STL10@64."
        )
    name, side = match[1], None if match[2] is None else _checked_side(int(match[2]), spec)
    root = data_dir or user_cache() / "torchvision"
    data = _open(name, split, root, download=data_dir is None)
    read = _ReadSample(data, side)
    mean, std = _moments(_ReadSample(_open(name, "train", root, download=False), side))
    labels = _labels_of(data)
    classes = tuple(map(str, getattr(data, "classes", None) or range(max(labels) + 1)))
    labels = checked_labels(labels, classes=len(classes), where=f"{name} in {root}").tolist()
    first = read(0)
    channels, height, width = first.shape
    return LazyImages(
        name=spec,
        split=split,
        read=read,
        labels=labels,
        classes=classes,
        shape=(channels, height, width),
        mean=mean,
        std=std,
    )


def _open(name: str, split: Split, root: Path, *, download: bool) -> Any:
    if find_spec("torchvision") is None:
        raise UsageError("--data torchvision:... needs torchvision: pip install 'samestep[vision]'.")
    try:
        from torchvision import datasets
    except (ImportError, RuntimeError) as error:  # RuntimeError: built for another torch
        raise UsageError(
            f"torchvision cannot be imported ({error}). Install the one for torch {torch.__version__}."
        ) from None
    kind = getattr(datasets, name, None) if name in getattr(datasets, "__all__", ()) else None
    if kind is None:
        raise UsageError(f"torchvision has no data set {name}.")
    parameters = inspect.signature(kind).parameters
    which = {"train": split == "train"} if "train" in parameters else {"split": split}
    if not {"download", *which} <= set(parameters):
        raise UsageError(f"torchvision's {name} has no training and test split of labeled images.")
    try:
        with download_lock(root, name) if download else nullcontext():
            return kind(str(root), download=download, **which)
    except (RuntimeError, OSError, ValueError) as error:
        raise DataError(f"torchvision cannot open {name} in {root}: {error}") from None


def _labels_of(data: Any) -> Sequence[int]:
    for name in ("targets", "labels", "_labels"):
        labels = getattr(data, name, None)
        if labels is not None:
            return [int(label) for label in labels]
    return [int(label) for _, label in data]


def _moments(read: _ReadSample) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation per channel, with white as 1.0, of evenly chosen images."""
    count = len(read.data)
    chosen = range(0, count, max(1, count // _SAMPLED))
    pixels = torch.cat([read(index).flatten(1) for index in chosen], 1).double() / 255
    return tuple(pixels.mean(1).tolist()), tuple(pixels.std(1, correction=0).clamp(min=1e-3).tolist())


MAX_CLASSES = 2**20
"""Maximum number of classes."""


def _check_fits(spec: str, *, images: int, labels: int, classes: int) -> None:
    """Refuse images that do not fit into this machine's memory.

    Raises:
        UsageError: they do not fit, or there are too many classes; names the sizes.
    """
    if classes > MAX_CLASSES:
        raise UsageError(f"--data {spec} has {classes:,} classes; use {MAX_CLASSES:,} or fewer.")
    there = machine().memory_bytes
    if images + labels > there:
        raise UsageError(
            f"--data {spec} needs {bytes_text(images + labels)} for its images, and this machine has "
            f"{bytes_text(there)} of memory. Use fewer or smaller images."
        )


_COUNT = "([0-9]{1,18})"
_SPEC = re.compile(rf"synthetic(?::{_COUNT}x{_COUNT}x{_COUNT}(?:,{_COUNT}(?:,{_COUNT})?)?)?")
_USUAL = (3, 224, 224, 1000, 1280)  # ImageNet's channels, sides and classes; 40 batches of 32 samples
TEST_SAMPLES = 64  # few, because only training is measured


def load_synthetic(spec: str, split: Split, *, data_dir: Path | None = None) -> ImageSet:
    """Return a split of random images and labels, the same on every machine.

    Raises:
        UsageError: `spec` has another form, one of its numbers is 0, or the images do not fit into memory.
    """
    del data_dir
    match = _SPEC.fullmatch(spec)
    if match is None:
        raise UsageError(f"--data {spec} is invalid; write it as synthetic:3x224x224,1000,1280.")
    numbers = [None if text is None else int(text) for text in match.groups()]
    channels, height, width, classes, samples = (
        usual if number is None else number for number, usual in zip(numbers, _USUAL, strict=True)
    )
    if 0 in (channels, height, width, classes, samples):
        raise UsageError(f"--data {spec} has a 0; use numbers of 1 or more.")
    count = samples if split == "train" else min(samples, TEST_SAMPLES)
    _check_fits(spec, images=count * channels * height * width, labels=8 * count, classes=classes)
    draw = torch.Generator().manual_seed(0 if split == "train" else 1)
    return ImageSet(
        name=spec,
        split=split,
        images=torch.randint(
            0, 256, (count, channels, height, width), dtype=torch.uint8, generator=draw, device="cpu"
        ),
        labels=torch.randint(0, classes, (count,), generator=draw, device="cpu"),
        classes=tuple(str(number) for number in range(classes)),
        mean=(0.5,) * channels,
        std=(0.29,) * channels,  # of a uniform distribution over 0 .. 1: 1/sqrt(12)
    )
