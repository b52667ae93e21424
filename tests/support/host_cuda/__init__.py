"""A CUDA device whose memory is the host's, so that code for GPUs runs where there is none.

`device.cpp` gives a build of torch without CUDA kernels for its device type. `site` is a folder of Python's
path that loads them with torch, and lets `torch.cuda` say that a GPU is there. Ranks share it, over Gloo. It
finds what mixes devices, what a device does not allow, and faults of paths that no run on CPUs takes. It says
nothing about kernels of GPUs, streams and NCCL.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch
from torch.utils.cpp_extension import include_paths

from support.systems import missing

_FOLDER = Path(__file__).parent
_TORCH = Path(torch.__file__).parent


def environment(path: str = "") -> dict[str, str]:
    """Return variables with which Python has the device, and `path` as its further path; compile it first.

    Skips the test where torch has kernels of CUDA.
    """
    if torch.version.cuda or torch.version.hip:
        pytest.skip("this torch has a CUDA device of its own")
    folders = os.pathsep.join(filter(None, (str(_FOLDER / "site"), path)))
    return {"SAMESTEP_TESTS_HOST_CUDA": str(_library()), "PYTHONPATH": folders}


def _library() -> Path:
    source = _FOLDER / "device.cpp"
    version = hashlib.sha256(source.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    library = Path(tempfile.gettempdir()) / f"samestep-tests-{os.getuid()}" / f"host-cuda-{version}.so"
    if not library.exists():
        library.parent.mkdir(mode=0o700, exist_ok=True)
        _compile(source, library)
    return library


def _compile(source: Path, library: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        missing("g++", "no g++ compiles the device")
    unfinished = library.with_suffix(f".{os.getpid()}")
    subprocess.run(
        [
            *(compiler, "-shared", "-fPIC", "-std=c++20", "-O1", "-w"),
            *(f"-isystem{path}" for path in include_paths()),
            *(str(source), "-o", str(unfinished), f"-L{_TORCH / 'lib'}", "-ltorch_cpu", "-lc10"),
        ],
        check=True,
    )
    unfinished.replace(library)
