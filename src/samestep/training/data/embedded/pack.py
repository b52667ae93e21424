"""Packs the original optdigits files, as README.md describes.

Usage: ``python -m samestep.training.data.embedded.pack DIR``.
"""

import lzma
import sys
from pathlib import Path

import numpy as np


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
    Path(__file__).with_name("optdigits.xz").write_bytes(packed)
