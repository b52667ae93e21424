"""CIFAR-10 is read from each of its published forms, and other files are refused."""

import bz2
import gzip
import io
import lzma
import pickle
import tarfile

import numpy as np
import pytest
import torch

from samestep.base.errors import DataError
from samestep.training.data.sets import cifar10
from samestep.training.data.sets.cifar10 import (
    CIFAR10,
    RECORD,
    cached_content,
    from_pickle,
    load_arrays,
    members,
)
from support.data import shared_data

COUNT = 20


class Hostile:
    """Writes a file if it is unpickled."""

    def __reduce__(self):
        return open, ("written-by-a-pickle", "w")


def made(seed):
    """Return the records of a small batch, in the binary form."""
    draw = np.random.default_rng(seed)
    records = draw.integers(0, 256, (COUNT, RECORD), dtype=np.uint8)
    records[:, 0] %= 10
    return records.tobytes()


def pickled(records):
    """Return `records` in the Python form, as Python 2 wrote it."""
    table = np.frombuffer(records, np.uint8).reshape(-1, RECORD)
    batch = {
        b"batch_label": b"some batch",
        b"labels": table[:, 0].tolist(),
        b"data": np.ascontiguousarray(table[:, 1:]),
        b"filenames": [b"a.png"] * len(table),
    }
    return pickle.dumps(batch, protocol=2)


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """An empty cache of decoded batches."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def batches(monkeypatch):
    """Small batches in place of the published ones, with their checksums."""
    import hashlib

    found = {name: made(seed) for seed, name in enumerate(cifar10._BATCHES)}
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in found.items()}
    monkeypatch.setattr(cifar10, "_BATCHES", sums)
    return found


PACKED = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


def loaded(folder):
    sets = [CIFAR10.load(split, data_dir=folder) for split in ("train", "test")]
    return [(images.images, images.labels) for images in sets]


def assert_all(found, batches):
    train, test = found
    table = np.frombuffer(b"".join(batches.values()), np.uint8).reshape(-1, RECORD)
    assert torch.equal(torch.cat([train[1], test[1]]), torch.from_numpy(table[:, 0].astype(np.int64)))
    pixels = torch.from_numpy(table[:, 1:].reshape(-1, 3, 32, 32).copy())
    assert torch.equal(torch.cat([train[0], test[0]]), pixels)


@pytest.mark.parametrize("packing", PACKED)
@pytest.mark.parametrize("form", [".bin", ""])
@pytest.mark.parametrize("folder", ["", "cifar10", "cifar-10-batches-bin", "cifar10/cifar-10-batches-py"])
def test_unpacked_batches_are_read_in_either_form(batches, tmp_path, folder, form, packing):
    place = tmp_path / "data" / folder
    place.mkdir(parents=True)
    for name, records in batches.items():
        content = records if form else pickled(records)
        (place / (name + form + packing)).write_bytes(PACKED[packing](content))

    assert_all(loaded(tmp_path / "data"), batches)


@pytest.mark.parametrize(
    "name", ["cifar-10-binary.tar.gz", "cifar-10-python.tar.gz", "cifar-10-binary.tar.xz"]
)
def test_an_archive_is_read_without_unpacking(batches, tmp_path, name):
    python = "python" in name
    with tarfile.open(tmp_path / name, f"w:{name.rpartition('.')[2]}") as tar:
        for batch, records in batches.items():
            content = pickled(records) if python else records
            entry = tarfile.TarInfo(f"cifar-10-batches/{batch}{'' if python else '.bin'}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))

    assert_all(loaded(tmp_path), batches)
    assert {path.name for path in tmp_path.iterdir()} == {name, "cache"}


def test_decoded_batches_are_cached(batches, tmp_path):
    for name, records in batches.items():
        (tmp_path / f"{name}.bin.xz").write_bytes(lzma.compress(records))
    loaded(tmp_path)
    for name in batches:
        (tmp_path / f"{name}.bin.xz").write_bytes(b"no longer needed")

    assert_all(loaded(tmp_path), batches)


def test_a_batch_that_is_not_the_published_one_is_refused_with_its_name(batches, tmp_path):
    for name, records in batches.items():
        (tmp_path / f"{name}.bin").write_bytes(records)
    (tmp_path / "data_batch_3.bin").write_bytes(made(99))

    with pytest.raises(DataError, match=r"data_batch_3.bin is not the published data_batch_3.bin: sha256"):
        loaded(tmp_path)


def test_missing_batches_are_listed(batches, tmp_path):
    (tmp_path / "data_batch_1.bin").write_bytes(batches["data_batch_1"])

    with pytest.raises(
        DataError, match=r"no data_batch_2 and .*data_batch_5 .*nor cifar-10-python.tar.gz in"
    ):
        CIFAR10.load("train", data_dir=tmp_path)


def test_a_pickle_that_would_run_code_is_refused_and_nothing_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hostile = pickle.dumps({b"data": Hostile(), b"labels": []}, protocol=2)

    with pytest.raises(DataError, match=r"batch is refused: .* (io|_io|__builtin__|builtins).open"):
        from_pickle(hostile, "batch")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content", [b"", b"nonsense", pickled(made(0))[:-1000], pickle.dumps([1, 2]), pickle.dumps({b"data": 1})]
)
def test_contents_that_are_not_a_batch_are_refused(content):
    with pytest.raises(DataError, match=r"^batch is "):
        from_pickle(content, "batch")


def test_a_pickle_of_arrays_and_plain_values_is_read():
    value = {b"a": np.arange(3, dtype=np.uint8), b"b": [1, 2.5, b"x", None, (True,)]}
    found = load_arrays(pickle.dumps(value, protocol=2), "it")
    np.testing.assert_array_equal(found[b"a"], value[b"a"])
    assert found[b"b"] == value[b"b"]


@pytest.mark.parametrize(
    "content", [b"no archive at all" * 100, gzip.compress(b"x" * 5000), bz2.compress(b"x")]
)
def test_a_file_that_is_not_an_archive_is_refused_with_its_name(content, tmp_path):
    (tmp_path / "it.tar").write_bytes(content)
    with pytest.raises(DataError, match=r"it\.tar is damaged"):
        members(tmp_path / "it.tar")


def test_damaged_contents_of_the_cache_are_replaced(tmp_path):
    import hashlib

    sha256 = hashlib.sha256(b"right").hexdigest()
    (tmp_path / sha256).write_bytes(b"wrong")
    assert cached_content(sha256, lambda: b"right", tmp_path, most=100) == b"right"
    assert (tmp_path / sha256).read_bytes() == b"right"


def test_contents_that_cannot_be_cached_are_returned(tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert cached_content("0" * 64, lambda: b"content", tmp_path / "file" / "deeper", most=100) == b"content"


def test_the_published_test_batch_is_read(tmp_path):
    images = CIFAR10.load("test", data_dir=shared_data("cifar10"))
    assert (len(images), images.shape, len(images.classes)) == (10_000, (3, 32, 32), 10)
    assert images.labels.bincount().tolist() == [1000] * 10
    assert images.labels[:4].tolist() == [3, 8, 8, 0]  # cat, ship, ship, airplane
