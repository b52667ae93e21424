"""Digits: 3,823 + 1,797 handwritten digits, 8 x 8 with values 0 to 16, bundled with the package.

Source: E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning
Repository, 1998; CC BY 4.0 (see ``embedded/README.md``).

``python -m samestep.training.data.sets.digits DIR`` packs the original files again.
"""

import lzma
import sys
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
import torch

from samestep.training.data import published
from samestep.training.data.image_set import ImageSet, Split
from samestep.training.data.published import PublishedFile

_TRAIN, _ALL = 3823, 5620  # samples of optdigits.tra, and with those of optdigits.tes
_FILE = PublishedFile(
    name="optdigits",
    suffix=".xz",
    sha256="f9b8495f4c89d0c619042f69bf4ad12b0680e8ed2f2faacccd894d43b53b3c8d",
    content_sha256="9680ef2a28dfb51bb9a7cf2a994167bd3875fee98984a53ddb7b176e474b4600",
    content_bytes=_ALL * 65,
)


@dataclass(frozen=True, slots=True)
class Digits:
    """The bundled data set."""

    name: str = "digits"
    about: str = "3,823 + 1,797 images, 8 x 8 grayscale"

    def load(self, split: Split, *, data_dir: Path | None = None) -> ImageSet:
        """See `DataSet.load`; `data_dir` is ignored."""
        del data_dir
        with as_file(files("samestep.training.data") / "embedded" / "optdigits.xz") as path:
            content = published.read(path, most=_FILE.content_bytes)
            published.verify(content, path, name=_FILE.name, sha256=_FILE.content_sha256)
        values = np.frombuffer(content, dtype=np.uint8)
        images = values[: _ALL * 64].reshape(_ALL, 1, 8, 8)
        labels = values[_ALL * 64 :]
        part = slice(0, _TRAIN) if split == "train" else slice(_TRAIN, _ALL)
        return ImageSet(
            name=self.name,
            split=split,
            images=torch.from_numpy(images[part].copy()),
            labels=torch.from_numpy(labels[part].astype(np.int64)),
            classes=tuple("0123456789"),
            mean=(0.30774823028380854,),
            std=(0.37728034910021835,),
            white=16,
        )

    def find(self, *, data_dir: Path | None = None) -> Path:
        """Return the folder of its file in the package."""
        del data_dir
        return Path(str(files("samestep.training.data"))) / "embedded"

    def fetch(self, folder: Path) -> list[Path]:
        """Return no files, because the data set is bundled."""
        del folder
        return []


DIGITS = Digits()


def pack(folder: Path) -> bytes:
    """Return the samples of ``optdigits.tra`` and ``optdigits.tes``: all images, then all labels."""
    parts = [
        np.loadtxt(folder / name, delimiter=",", dtype=np.uint8)
        for name in ("optdigits.tra", "optdigits.tes")
    ]
    rows = np.concatenate(parts)  # (samples, 64 pixels and the label)
    return rows[:, :64].tobytes() + rows[:, 64].tobytes()


if __name__ == "__main__":
    packed = lzma.compress(pack(Path(sys.argv[1])), preset=9 | lzma.PRESET_EXTREME)
    (DIGITS.find() / "optdigits.xz").write_bytes(packed)
