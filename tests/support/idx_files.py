"""Tiny data sets in the idx format, and the catalogue entries that describe them."""

import gzip
import hashlib
import lzma

import numpy as np

from samestep.training.data.published import PublishedFile
from samestep.training.data.sets.mnist import IdxDataSet

ENCODERS = {"": bytes, ".gz": lambda data: gzip.compress(data, mtime=0), ".xz": lzma.compress}


def idx_bytes(values: np.ndarray) -> bytes:
    """Return `values` (uint8) as the content of an idx file."""
    header = (0x0800 + values.ndim).to_bytes(4, "big")
    return header + b"".join(size.to_bytes(4, "big") for size in values.shape) + values.tobytes()


class TinySet:
    """Five images of 3 x 2 and their labels, as content, as published files and as a catalogue entry."""

    def __init__(self, mirrors: tuple[str, ...] = ()) -> None:
        self.images = np.arange(30, dtype=np.uint8).reshape(5, 3, 2)
        self.labels = np.array([3, 1, 4, 1, 5], dtype=np.uint8)
        self.contents = {
            "tiny-images-idx3-ubyte": idx_bytes(self.images),
            "tiny-labels-idx1-ubyte": idx_bytes(self.labels),
        }
        images, labels = (published(name, content) for name, content in self.contents.items())
        self.entry = IdxDataSet(
            name="tiny",
            files={"train": (images, labels)},
            classes=tuple("012345"),
            mean=0.5,
            std=0.25,
            folders=("tiny", ".", "TINY/raw"),
            mirrors=mirrors,
        )

    def write(self, folder, suffix=".gz", *, rename=lambda name: name):
        """Write both files to `folder`, compressed as `suffix` says."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.contents.items():
            (folder / (rename(name) + suffix)).write_bytes(ENCODERS[suffix](content))


def published(name: str, content: bytes) -> PublishedFile:
    """Return the entry of a file published as ``name.gz``."""
    return PublishedFile(
        name=name,
        suffix=".gz",
        sha256=hashlib.sha256(ENCODERS[".gz"](content)).hexdigest(),
        content_sha256=hashlib.sha256(content).hexdigest(),
        content_bytes=len(content),
    )
