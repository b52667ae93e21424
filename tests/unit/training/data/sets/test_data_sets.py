"""The named data sets, and the class of image sets in memory."""

import hashlib
from importlib.resources import files

import numpy as np
import pytest
import torch

from samestep.base.errors import DataError, UsageError
from samestep.training.data.image_set import ImageSet
from samestep.training.data.sets import digits
from samestep.training.data.sets.registry import DATA_SETS, load
from support.data import shared_data


def assert_statistics(images):
    """Check that mean and std are those of the (training) images."""
    counts = images.images.flatten().to(torch.int64).bincount(minlength=images.white + 1).to(torch.float64)
    values = torch.arange(images.white + 1, dtype=torch.float64) / images.white
    mean = (counts @ values / counts.sum()).item()
    std = (counts @ (values - mean) ** 2 / counts.sum()).sqrt().item()
    assert (mean, std) == pytest.approx((images.mean[0], images.std[0]), abs=1e-12)


def test_digits_are_loaded_without_other_files():
    train, test = load("digits", "train"), load("digits", "test")
    assert (len(train), len(test), train.shape) == (3823, 1797, (1, 8, 8))
    assert train.images.max() == train.white == 16
    assert train.labels.bincount().tolist() == [376, 389, 380, 389, 387, 376, 377, 387, 380, 382]
    assert test.labels.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert train.mean == test.mean
    assert_statistics(train)


def test_the_embedded_digits_equal_the_originals():
    content = digits.pack(shared_data("digits") / "digits")
    assert hashlib.sha256(content).hexdigest() == digits._FILE.content_sha256


def test_embedded_data_is_small_and_has_its_license():
    folder = files("samestep.training.data") / "embedded"
    assert len((folder / "optdigits.xz").read_bytes()) < 200_000
    credit = (folder / "README.md").read_text()
    assert "Alpaydin" in credit
    assert "CC BY 4.0" in credit


def test_damaged_embedded_data_is_refused(monkeypatch, tmp_path):
    (tmp_path / "embedded").mkdir()
    (tmp_path / "embedded" / "optdigits.xz").write_bytes(b"nonsense")
    monkeypatch.setattr(digits, "files", lambda package: tmp_path)
    with pytest.raises(DataError, match="is not the published optdigits"):
        load("digits", "train")


def test_mnist_from_a_folder_is_the_published_data_set():
    folder = shared_data("mnist")
    train, test = load("mnist", "train", data_dir=folder), load("mnist", "test", data_dir=folder / "mnist")
    assert (len(train), len(test), train.shape) == (60000, 10000, (1, 28, 28))
    assert train.labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert test.labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert_statistics(train)


def test_an_unknown_data_set_is_refused_with_the_known_ones():
    with pytest.raises(UsageError, match=r"'cats'.*digits, mnist"):
        load("cats", "train")


def test_each_data_set_is_registered_under_its_name():
    assert all(name == data_set.name for name, data_set in DATA_SETS.items())


def test_a_subset_has_the_first_samples_and_the_statistics_of_all():
    whole = load("digits", "train")
    part = whole.subset(100)
    np.testing.assert_array_equal(part.images.numpy(), whole.images[:100].numpy())
    assert part.labels.tolist() == whole.labels[:100].tolist()
    assert (part.mean, part.std) == (whole.mean, whole.std)


@pytest.mark.parametrize("count", [0, 1798])
def test_a_subset_of_no_or_too_many_samples_is_refused(count):
    with pytest.raises(UsageError, match=f"subset of {count} samples: .* 1797"):
        load("digits", "test").subset(count)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (
            torch.zeros(3, 1, 2, 2, dtype=torch.uint8),
            torch.zeros(2, dtype=torch.int64),
            "3 images but 2 labels",
        ),
        (torch.zeros(2, 1, 2, 2), torch.zeros(2, dtype=torch.int64), "must be uint8"),
    ],
)
def test_inconsistent_images_and_labels_are_refused(images, labels, message):
    with pytest.raises(DataError, match=message):
        ImageSet(name="x", split="train", images=images, labels=labels, classes=(), mean=(0.0,), std=(1.0,))
