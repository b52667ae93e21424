"""Calls the CPU's mathematical functions on one thread, before several threads call them.

oneMKL chooses the kernel of such a function at its first call. If several threads make that call at once,
one of them may get a kernel of half the digits for its part of the tensor: observed with oneMKL 2024.2 and
torch 2.13 (https://github.com/pytorch/pytorch/issues/188792). A seeded run then starts with other values than
the last one, by 1e-8 in double precision.
"""

import sys

FUNCTIONS = (
    *("acos", "asin", "atan", "cos", "erf", "erfc", "erfinv", "exp", "log"),
    *("log10", "log2", "sin", "sqrt", "tan", "tanh", "trunc"),
)
"""Functions that torch computes with oneMKL, in single and double precision."""


def settle_math_kernels() -> None:
    """Make oneMKL choose the kernel of each function in this process, and so in those forked from it.

    Takes a millisecond the first time; does nothing if torch is not loaded.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return
    for dtype in (torch.float32, torch.float64):
        one = torch.full((1,), 0.5, dtype=dtype, device="cpu")  # too small for a second thread
        for name in FUNCTIONS:
            getattr(one, name)()
