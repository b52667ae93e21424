"""Published idx files are read from a folder, and other files are refused."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from samestep.base.errors import DataError
from samestep.training.data.sets.mnist import parse
from support.idx_files import ENCODERS, TinySet, idx_bytes

IMAGES = "tiny-images-idx3-ubyte"
LABELS = "tiny-labels-idx1-ubyte"


def refused(tiny, folder):
    """Return the message with which loading from `folder` fails."""
    with pytest.raises(DataError) as refusal:
        tiny.entry.load("train", data_dir=folder)
    message = str(refusal.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("suffix", ENCODERS)
@pytest.mark.parametrize("folder", ["tiny", ".", "TINY/raw"])
def test_a_copy_is_read_with_any_compression_and_folder_layout(tmp_path, folder, suffix):
    tiny = TinySet()
    tiny.write(tmp_path / folder, suffix)
    images = tiny.entry.load("train", data_dir=tmp_path)
    assert images.images.dtype == torch.uint8
    assert images.shape == (1, 3, 2)
    np.testing.assert_array_equal(images.images[:, 0].numpy(), tiny.images)
    assert images.labels.tolist() == [3, 1, 4, 1, 5]


def test_file_names_of_other_tools_are_found(tmp_path):
    tiny = TinySet()
    tiny.write(tmp_path, "", rename=lambda name: name.replace("-idx", ".idx"))
    assert len(tiny.entry.load("train", data_dir=tmp_path)) == 5


def test_missing_files_are_named_with_the_searched_folders(tmp_path):
    message = refused(TinySet(), tmp_path)
    assert IMAGES in message
    assert LABELS in message
    assert str(tmp_path / "TINY/raw") in message
    assert "--data-dir" in message


def test_only_missing_files_are_named(tmp_path):
    tiny = TinySet()
    tiny.write(tmp_path)
    (tmp_path / f"{LABELS}.gz").unlink()
    message = refused(tiny, tmp_path)
    assert LABELS in message
    assert IMAGES not in message


def test_a_missing_folder_is_refused_with_its_path(tmp_path):
    assert f"--data-dir {tmp_path / 'nowhere'} is not a folder" in refused(TinySet(), tmp_path / "nowhere")


def test_other_contents_are_refused_with_the_expected_checksum(tmp_path):
    tiny = TinySet()
    tiny.write(tmp_path)
    other = idx_bytes(tiny.labels + 1)
    (tmp_path / f"{LABELS}.gz").write_bytes(gzip.compress(other))
    message = refused(tiny, tmp_path)
    assert str(tmp_path / f"{LABELS}.gz") in message
    assert tiny.entry.files["train"][1].content_sha256 in message


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: data[:25] + b"\xff" * 9 + data[34:]])
def test_a_damaged_file_is_refused(tmp_path, suffix, damage):
    tiny = TinySet()
    tiny.write(tmp_path, suffix)
    path = tmp_path / (IMAGES + suffix)
    path.write_bytes(damage(path.read_bytes()))
    message = refused(tiny, tmp_path)
    assert str(path) in message
    assert "damaged" in message


def test_a_truncated_uncompressed_file_is_refused_with_its_count(tmp_path):
    tiny = TinySet()
    tiny.write(tmp_path, "")
    path = tmp_path / IMAGES
    path.write_bytes(path.read_bytes()[:-4])
    assert "5 x 3 x 2 = 30 values, and it has 26" in refused(tiny, tmp_path)


def test_swapped_files_are_refused(tmp_path):
    tiny = TinySet()
    tiny.write(tmp_path, "")
    images, labels = tmp_path / IMAGES, tmp_path / LABELS
    first, second = images.read_bytes(), labels.read_bytes()
    images.write_bytes(second)
    labels.write_bytes(first)
    assert "begins with 2049" in refused(tiny, tmp_path)


@pytest.mark.parametrize("content", [b"", b"<html>", b"\0\0\x08\x03"])
def test_contents_that_are_not_an_idx_file_are_refused(content):
    with pytest.raises(DataError, match="not an idx file"):
        parse(content, Path("somewhere"), dimensions=3)
