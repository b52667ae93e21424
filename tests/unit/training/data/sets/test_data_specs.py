"""Image sets that are given by a specification: random images, folders, torchvision's sets."""

import gzip
from contextlib import suppress

import numpy as np
import pytest
import torch
from filelock import FileLock, Timeout

from samestep.base.errors import DataError, UsageError
from samestep.base.place import Place
from samestep.training.data.image_set import ImageSet, LazyImages
from samestep.training.data.loader import ImageLoader, LoaderOptions
from samestep.training.data.sets import with_parameters
from samestep.training.data.sets.registry import load
from support.data import shared_data
from support.vision import torchvision


@pytest.mark.parametrize(
    ("spec", "shape", "classes", "samples"),
    [
        ("synthetic:1x8x6", (1, 8, 6), 1000, 1280),
        ("synthetic:3x4x4,7", (3, 4, 4), 7, 1280),
        ("synthetic:3x4x4,7,20", (3, 4, 4), 7, 20),
    ],
)
def test_random_images_have_the_specified_form_and_are_reproducible(spec, shape, classes, samples):
    train, again, test = load(spec, "train"), load(spec, "train"), load(spec, "test")
    assert (train.shape, len(train.classes), len(train)) == (shape, classes, samples)
    assert torch.equal(train.images, again.images)
    assert torch.equal(train.labels, again.labels)
    assert len(test) == min(samples, 64)
    assert not torch.equal(train.images[: len(test)], test.images)


@pytest.mark.parametrize(
    "spec", ["synthetic:", "synthetic:8x8", "synthetic:3x8x8,", "synthetic:0x8x8", "synthetic@3"]
)
def test_an_invalid_specification_of_random_images_is_refused(spec):
    with pytest.raises(UsageError, match=f"--data {spec}"):
        load(spec, "train")


@pytest.fixture
def folder(tmp_path):
    """A folder of small images: two classes, different sizes and modes."""
    from PIL import Image

    draw = np.random.default_rng(0)
    for split, count in (("train", 5), ("val", 2)):
        for label, name in enumerate(("cat", "dog")):
            place = tmp_path / split / name
            place.mkdir(parents=True)
            for number in range(count):
                pixels = draw.integers(0, 256, (10 + number, 14, 3), dtype=np.uint8)
                image = Image.fromarray(pixels)
                (image.convert("L") if number == 1 else image).save(place / f"{label}-{number}.png")
            (place / "notes.txt").write_text("no image")
    return tmp_path


def test_a_folder_of_images_is_read_on_demand(folder):
    train, test = load("folder@8", "train", data_dir=folder), load("folder@8", "test", data_dir=folder)
    assert isinstance(train, LazyImages)
    assert (train.shape, train.classes, len(train), len(test)) == ((3, 8, 8), ("cat", "dog"), 10, 4)
    assert [label for _, label in train] == [0] * 5 + [1] * 5
    grey, _ = train[1]
    assert torch.equal(grey[0], grey[1])
    drawn = ImageLoader(
        train, LoaderOptions(batch_size=4), place=Place(), device=torch.device("cpu"), workers=0
    )
    assert [tuple(batch.images.shape) for batch in drawn.epoch()] == [
        (4, 3, 8, 8),
        (4, 3, 8, 8),
        (2, 3, 8, 8),
    ]


def test_a_damaged_image_is_refused_with_its_path(folder):
    (folder / "train" / "cat" / "0-0.png").write_bytes(b"broken")
    with pytest.raises(DataError, match=r"train/cat/0-0.png cannot be read as an image"):
        load("folder@8", "train", data_dir=folder)[0]


def test_splits_of_different_classes_are_refused(folder):
    (folder / "val" / "cow").mkdir()
    with pytest.raises(DataError, match=r"train .* cow"):
        load("folder@8", "test", data_dir=folder)


@pytest.mark.parametrize(
    ("spec", "given", "message"),
    [
        ("folder", None, "needs --data-dir DIR"),
        ("folder@0", ".", "folder@224"),
        ("folder@big", ".", "folder@224"),
        ("folder", "empty", "there is no .*/train"),
    ],
)
def test_an_invalid_folder_of_images_is_refused(spec, given, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        load(spec, "train", data_dir=None if given is None else tmp_path / given)


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(UsageError, match=r"no data set 'imagenet'.* digits, mnist, fashion-mnist, cifar10"):
        load("imagenet", "train")


def test_mnist_of_torchvision_equals_the_published_one(tmp_path):
    torchvision()
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for path in (shared_data("mnist") / "mnist").glob("*.gz"):
        (raw / path.stem).write_bytes(gzip.decompress(path.read_bytes()))

    theirs, ours = (
        load("torchvision:MNIST", "test", data_dir=tmp_path),
        load("mnist", "test", data_dir=shared_data("mnist")),
    )

    assert isinstance(ours, ImageSet)
    assert (theirs.shape, len(theirs), len(theirs.classes)) == (ours.shape, len(ours), 10)
    for index in (0, 1, 9_999):
        image, label = theirs[index]
        assert torch.equal(image, ours.images[index])
        assert label == ours.labels[index]
    assert theirs.mean == pytest.approx(ours.mean, abs=0.01)
    assert load("torchvision:MNIST@16", "test", data_dir=tmp_path)[3][0].shape == (1, 16, 16)


def test_one_process_at_a_time_downloads_a_data_set_of_torchvision(tmp_path, monkeypatch):
    """Only this catches ranks without a common parent that write the same archive at once."""
    datasets = torchvision().datasets
    folder, locked = tmp_path / "samestep" / "torchvision", []

    def download(root, train=True, download=False):
        lock = FileLock(folder / ".MNIST.lock")
        with suppress(Timeout), lock.acquire(timeout=0):
            raise AssertionError("another process can download as well")
        locked.append(root)
        raise RuntimeError("no network")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(datasets, "MNIST", download)
    with pytest.raises(DataError, match="no network"):
        load("torchvision:MNIST", "train", data_dir=None)
    assert locked == [str(folder)]
    with FileLock(folder / ".MNIST.lock").acquire(timeout=0):  # it is released
        pass


class Flowers(list):
    """A data set of torchvision that has its labels in a private attribute, as Flowers102."""

    _labels = (2, 0)

    def __iter__(self):
        raise AssertionError("no image is to be read for its label")


def test_labels_are_read_without_the_images():
    assert with_parameters._labels_of(Flowers()) == [2, 0]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("torchvision:NoSuchSet", "torchvision has no data set NoSuchSet"),
        ("torchvision:MNIST", "torchvision cannot open MNIST in"),
        ("torchvision:CocoDetection", "has no training and test split"),
        ("torchvision:", "is invalid"),
    ],
)
def test_a_data_set_that_torchvision_cannot_provide_is_refused(spec, message, tmp_path):
    torchvision()
    with pytest.raises(UsageError, match=message):
        load(spec, "train", data_dir=tmp_path)


def test_fashion_mnist_is_the_published_one():
    train = load("fashion-mnist", "train", data_dir=shared_data("fashion-mnist"))
    assert (len(train), train.shape, train.classes[9]) == (60_000, (1, 28, 28), "Ankle boot")
    assert train.labels.bincount().tolist() == [6000] * 10
    assert train.mean[0] == pytest.approx(0.2860, abs=1e-4)
