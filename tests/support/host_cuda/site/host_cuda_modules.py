"""Changes torch, and two modules of samestep, so that they find the device."""

import ctypes
import os
from contextlib import contextmanager
from pathlib import Path

_LIBRARY = os.environ["SAMESTEP_TESTS_HOST_CUDA"]


@contextmanager
def changing(name, spec):
    """Change the module `name` while it is loaded within this context."""
    if name == "torch":
        # Before torch asks for its CUDA library for the first time: it never asks again.
        ctypes.CDLL(str(Path(spec.origin).parent / "lib" / "libtorch_python.so"), ctypes.RTLD_GLOBAL)
        ctypes.CDLL(_LIBRARY)
        yield
        import host_cuda_torch

        host_cuda_torch.change()
        return
    yield
    if name == "samestep.ranks.world.device":
        from samestep.ranks.world.device import BACKENDS

        BACKENDS["cuda"] = "gloo"  # it computes in the memory of the device, which is the host's
    else:
        from samestep.base.machine import accelerators

        accelerators.can_have_accelerators = lambda *_: True
