"""CIFAR-10: 50,000 + 10,000 photographs of ten classes, 32 x 32 in color.

Source: A. Krizhevsky, "Learning multiple layers of features from tiny images", 2009. It is published twice:

``cifar-10-binary.tar.gz``
    six batches of 10,000 records of 3,073 bytes: the label, then 1,024 red, green and blue values each.
``cifar-10-python.tar.gz``
    the same as pickled dicts of Python 2, whose ``data`` is uint8 (10000, 3072) and ``labels`` a list.

Either archive works, and so do its unpacked batches, each plain or compressed by gzip or xz. Both contain the
same records, which are verified by checksums.

A pickle is read without executing its code.
"""

import hashlib
import io
import os
import pickle
import pickletools
import tarfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from samestep.base.errors import DataError
from samestep.base.folders import user_cache
from samestep.base.regular_files import read_bytes
from samestep.training.data import published
from samestep.training.data.image_set import ImageSet, Split, checked_labels
from samestep.training.data.published import PublishedFile, fetch


def _encode(text: str, encoding: str) -> bytes:
    """Encode as latin1, which Python 3 uses for bytes in pickles for Python 2; refuse other codecs."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it needs the codec {encoding}")
    return text.encode("latin1")


_RECONSTRUCT = np.ndarray(0).__reduce__()[0]
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _encode,
}
"""The only names that a pickled array needs."""


class _ArrayUnpickler(pickle.Unpickler):
    """An unpickler of arrays, numbers, strings, lists and dicts."""

    def find_class(self, module: str, name: str) -> Any:
        """Return an allowed callable."""
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it needs {module}.{name}")
        return _ALLOWED[module, name]


_MOST_OPCODES = 500_000  # maximum opcodes of a pickle; a batch of CIFAR-10 has about ten thousand


def _check_opcodes(content: bytes) -> None:
    """Refuse too many opcodes, and a memo index beyond the pickle's size: five bytes could allocate 64 GB.

    Raises:
        ValueError: there is one of these, or the pickle is damaged.
    """
    for number, (opcode, index, _) in enumerate(pickletools.genops(content)):
        if number > _MOST_OPCODES:
            raise ValueError(f"it has more than {_MOST_OPCODES:,} opcodes")
        if opcode.name in ("PUT", "LONG_BINPUT") and index is not None and index > len(content):
            raise ValueError(f"it has a memo index of {index:,} in {len(content):,} bytes")


def load_arrays(content: bytes, where: str) -> Any:
    """Return the arrays and plain values in a pickle; strings of Python 2 are returned as bytes.

    Raises:
        DataError: it contains anything else, or is damaged. No code of it is executed.
    """
    try:
        _check_opcodes(content)
        return _ArrayUnpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # noqa: BLE001 - a damaged pickle can raise anything
        raise DataError(
            f"{where} is refused: it is not a pickle of arrays and plain values ({type(error).__name__}: "
            f"{error}). Use the published file."
        ) from None


RECORD = 1 + 3 * 32 * 32  # bytes of a label and an image
_BATCH_BYTES = 10_000 * RECORD + (1 << 20)
"""Maximum bytes of a batch; the python form has file names besides the records."""
_BATCHES: Mapping[str, str] = {
    "data_batch_1": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
"""The sha256 of each batch's records."""

_CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)

_ARCHIVE = PublishedFile(
    name="cifar-10-binary.tar",
    suffix=".gz",
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    content_sha256="",  # its batches are verified one by one
    content_bytes=256 << 20,  # both archives are smaller
)
_MIRRORS = ("https://www.cs.toronto.edu/~kriz/",)
_FOLDERS = tuple(
    prefix + folder
    for folder in ("", "cifar-10-batches-bin", "cifar-10-batches-py")
    for prefix in ("cifar10/", "./")
)
_FORMS = tuple(form + packed for form in (".bin", "") for packed in ("", ".gz", ".xz"))
_ARCHIVES = tuple(
    f"cifar-10-{kind}.tar{suffix}" for kind in ("binary", "python") for suffix in (".gz", "", ".xz")
)


@dataclass(frozen=True, slots=True)
class Cifar10:
    """The data set, from either form of its files."""

    name: str = "cifar10"
    about: str = "50,000 + 10,000 images, 32 x 32 in color"

    def load(self, split: Split, *, data_dir: Path | None = None) -> ImageSet:
        """See `DataSet.load`; downloads the archive, and caches its decompressed batches."""
        cache = user_cache() / self.name
        names = [name for name in _BATCHES if name.startswith("test") == (split == "test")]
        if data_dir is None:
            archive: Path | None = fetch(_ARCHIVE, _MIRRORS, cache)
            batches: dict[str, Path] = {}
        else:
            batches, archive = _locate(names, data_dir)
        source = _Source(batches, archive)
        content = b"".join(
            cached_content(
                _BATCHES[name],
                lambda name=name: source.records(name),  # type: ignore[misc]
                cache / "decoded",
                most=_BATCH_BYTES,
            )
            for name in names
        )
        records = np.frombuffer(content, dtype=np.uint8).reshape(-1, RECORD)
        return ImageSet(
            name=self.name,
            split=split,
            images=torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32).copy()),
            labels=torch.from_numpy(records[:, 0].astype(np.int64)),
            classes=_CLASSES,
            mean=(0.49139967861519745, 0.4821584083946076, 0.44653091444546616),
            std=(0.24703223246328201, 0.24348512800005553, 0.2615878417279645),
        )

    def find(self, *, data_dir: Path | None = None) -> Path | None:
        """See `DataSet.find`."""
        try:
            batches, archive = _locate(list(_BATCHES), data_dir or user_cache() / self.name)
        except DataError:
            return None
        return (archive or batches["test_batch"]).parent

    def fetch(self, folder: Path) -> list[Path]:
        """See `DataSet.fetch`."""
        return [fetch(_ARCHIVE, _MIRRORS, folder)]


CIFAR10 = Cifar10()


class _Source:
    """The source of batches: separate files, or one archive, which is read once."""

    def __init__(self, batches: Mapping[str, Path], archive: Path | None) -> None:
        self._batches = batches
        self._archive = archive
        self._members: dict[str, bytes] | None = None

    def records(self, name: str) -> bytes:
        """Return the verified records of a batch."""
        if name in self._batches:
            path = self._batches[name]
            content, where = published.read(path, most=_BATCH_BYTES), str(path)
        else:
            assert self._archive is not None
            if self._members is None:
                self._members = members(self._archive)
            if name not in self._members:
                raise DataError(f"{self._archive} has no {name}: it is not the published archive.")
            content, where = self._members[name], f"{self._archive}: {name}"
        records = content if _is_binary(content) else from_pickle(content, where)
        published.verify(records, Path(where), name=f"{name}.bin", sha256=_BATCHES[name])
        return records


def members(archive: Path) -> dict[str, bytes]:
    """Return the contents of the files in a tar archive, by name without folder and suffix.

    Raises:
        DataError: it is damaged, truncated, or no archive.
    """
    content = published.read(archive, most=_ARCHIVE.content_bytes)
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
            # A sparse member of some bytes can have any nominal size.
            batches = [
                member
                for member in tar
                if member.isfile() and not member.issparse() and member.size <= _BATCH_BYTES
            ]
            files = {member.name: tar.extractfile(member) for member in batches}
            return {Path(name).stem: file.read() for name, file in files.items() if file is not None}
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise DataError(f"{archive} is damaged or no tar archive ({error}). Download it again.") from None


def from_pickle(content: bytes, where: str) -> bytes:
    """Return the records of a batch in the python form, which was read from `where`.

    Raises:
        DataError: it is no such batch.
    """
    batch = load_arrays(content, where)
    data, labels = (
        (batch.get(key) for key in (b"data", b"labels")) if isinstance(batch, dict) else (None, None)
    )
    if (
        not isinstance(data, np.ndarray)
        or not isinstance(labels, list)
        or data.dtype != np.uint8
        or data.shape != (len(labels), RECORD - 1)
    ):
        raise DataError(f"{where} is not a batch of CIFAR-10: it has no data (n, 3072) with n labels.")
    checked = checked_labels(labels, classes=len(_CLASSES), where=where)
    return np.hstack([checked.astype(np.uint8)[:, None], data]).tobytes()


def _is_binary(content: bytes) -> bool:
    """Return whether a batch has the binary form: a pickle's first byte is no label."""
    return len(content) % RECORD == 0 and content[:1] <= b"\x09"


def _locate(names: list[str], data_dir: Path) -> tuple[dict[str, Path], Path | None]:
    """Return the files of the batches, or else an archive that contains them."""
    places = published.folders_of(data_dir, _FOLDERS)
    paths = {name: published.first_existing(places, [name + form for form in _FORMS]) for name in names}
    whole = {name: path for name, path in paths.items() if path is not None}
    if len(whole) == len(names):
        return whole, None
    archive = published.first_existing(places, _ARCHIVES)
    if archive is None:
        missing = [name for name in names if name not in whole]
        raise DataError(
            f"no {' and no '.join(missing)} (.bin or pickled; plain, .gz or .xz) and neither "
            f"cifar-10-binary.tar.gz nor cifar-10-python.tar.gz in {places[0]} or {places[1]}. Give their "
            "folder with --data-dir, or omit it to download the archive."
        )
    return {}, archive


def cached_content(sha256: str, decode: Callable[[], bytes], folder: Path, *, most: int) -> bytes:
    """Return the content with checksum `sha256` from the cache, or decode it and store it there.

    A cached file is verified. Content that cannot be stored is returned without an error.
    """
    path = folder / sha256
    with suppress(OSError):
        content = read_bytes(path, most=most)
        if hashlib.sha256(content).hexdigest() == sha256:
            return content
    content = decode()
    draft = folder / f".{sha256}.draft-{os.getpid()}"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            draft.write_bytes(content)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    return content
