"""Data and models that exceed the memory, and invalid labels, are refused before memory is allocated."""

import gzip
import io
import lzma
import pickle

import numpy as np
import pytest

from samestep.base.errors import DataError, UsageError
from samestep.training.data.image_set import checked_labels
from samestep.training.data.published import read
from samestep.training.data.sets.cifar10 import RECORD, from_pickle, load_arrays
from samestep.training.data.sets.registry import load
from samestep.training.networks import ResNet9, build
from support.fuzz_reader import ODD_FILES, put_odd
from support.idx_files import TinySet
from support.image_files import png

PACKED = [gzip.compress, lzma.compress]


@pytest.mark.parametrize("pack", PACKED)
def test_files_are_decompressed_up_to_their_published_size(tmp_path, pack):
    one, two = bytes(range(100)), bytes(1000)
    path = tmp_path / "packed"

    path.write_bytes(pack(one) + pack(two))  # both may follow each other
    assert read(path, most=1100) == one + two
    with pytest.raises(DataError, match="1,099 published bytes"):
        read(path, most=1099)
    path.write_bytes(pack(two)[:-5])
    with pytest.raises(DataError, match="damaged or truncated"):
        read(path, most=1100)


@pytest.mark.parametrize("pack", PACKED)
def test_a_decompression_bomb_is_refused_with_its_name(tmp_path, pack):
    tiny = TinySet()
    tiny.write(tmp_path, "")
    (tmp_path / "tiny-images-idx3-ubyte").write_bytes(pack(bytes(1 << 20)) * 3000)

    with pytest.raises(DataError, match="tiny-images"):
        tiny.entry.load("train", data_dir=tmp_path)


@pytest.mark.parametrize("labels", [[300, 0], [0, 10], [-1, 0], [0, 0.5], [0, None], [[0], 1], [2**70, 1]])
def test_an_invalid_label_is_refused_with_its_file_and_image(labels):
    batch = pickle.dumps({b"labels": labels, b"data": np.zeros((2, RECORD - 1), np.uint8)}, protocol=2)
    wrong = 1 if labels[0] == 0 else 0

    with pytest.raises(DataError, match=rf"data_batch_1.*image {wrong}"):
        from_pickle(batch, "data_batch_1")


def test_labels_in_arrays_are_checked_too():
    assert checked_labels(np.array([0, 9], np.uint8), classes=10, where="a").tolist() == [0, 9]
    with pytest.raises(DataError, match="image 1 is 10"):
        checked_labels(np.array([0, 10], np.uint8), classes=10, where="a")


def test_a_pickle_with_a_huge_memo_index_is_refused():
    with pytest.raises(DataError):
        load_arrays(b"\x80\x02]r" + (2**32 - 1).to_bytes(4, "little") + b".", "a")


@pytest.mark.parametrize("side", [8200, 9400, 20_000, 2**31 - 1])
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_an_image_of_too_many_pixels_is_refused_with_its_name(tmp_path, side):
    pytest.importorskip("PIL")
    (tmp_path / "train" / "a").mkdir(parents=True)
    (tmp_path / "train" / "a" / "bomb.png").write_bytes(png(side, side))
    images = load("folder@8", "train", data_dir=tmp_path)

    with pytest.raises(DataError, match=r"bomb\.png.*pixels"):
        images[0]


@pytest.mark.parametrize("kind", [kind for kind in ODD_FILES if kind != "unreadable"])
def test_an_image_path_that_is_not_a_regular_file_is_refused(tmp_path, kind):
    pytest.importorskip("PIL")
    (tmp_path / "train" / "a").mkdir(parents=True)
    put_odd(tmp_path / "train" / "a" / "odd.png", kind)
    images = load("folder@8", "train", data_dir=tmp_path)

    with pytest.raises(DataError, match=r"odd\.png"):
        images[0]


def test_postscript_with_the_name_of_an_image_is_refused(tmp_path):
    image = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    image.new("RGB", (8, 8)).save(file, "EPS")
    (tmp_path / "train" / "a").mkdir(parents=True)
    (tmp_path / "train" / "a" / "0.png").write_bytes(file.getvalue())

    with pytest.raises(DataError):
        load("folder@8", "train", data_dir=tmp_path)[0]


@pytest.mark.parametrize(
    "spec",
    [
        "synthetic:3x224x224,1000,99999999999",
        "synthetic:99999x99999x99999,1,1",
        "synthetic:3x8x8,99999999999,4",
        "synthetic:\u0663x8x8",
        "synthetic:" + "9" * 5000 + "x1x1",
        "folder@999999999",
        "folder@" + "9" * 5000,
    ],
)
def test_data_sets_that_exceed_the_memory_are_refused(tmp_path, spec):
    (tmp_path / "train" / "a").mkdir(parents=True)

    with pytest.raises(UsageError):
        load(spec, "train", data_dir=tmp_path)


@pytest.mark.parametrize("width", ["99999999", "9" * 17, "9" * 5000, "\u0663", "0", ""])
def test_a_model_of_excessive_or_invalid_width_is_refused(width):
    with pytest.raises(UsageError):
        build(f"resnet9:{width}", shape=(3, 32, 32), classes=10)


def test_parameters_are_counted_without_building_the_network():
    for size in ({"channels": 3, "classes": 10, "width": 8}, {"channels": 1, "classes": 7, "width": 5}):
        built = sum(one.numel() for one in ResNet9(**size).parameters())

        assert ResNet9.parameter_count(**size) == built
