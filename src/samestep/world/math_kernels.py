"""The processor's mathematical functions, each called by one thread before several call it.

oneMKL chooses the kernel of such a function at its first call. Where several threads make that call at once,
one of them may be given a kernel of half the digits for its part of the tensor: seen with oneMKL 2024.2 and
torch 2.13 (https://github.com/pytorch/pytorch/issues/188792). A seeded run then begins otherwise than the
last one, by 1e-8 in double precision.
"""

import sys

FUNCTIONS = (
    *("acos", "asin", "atan", "cos", "erf", "erfc", "erfinv", "exp", "log"),
    *("log10", "log2", "sin", "sqrt", "tan", "tanh", "trunc"),
)
"""Those that torch leaves to oneMKL, in single and double precision."""


def settle_math_kernels() -> None:
    """Have the kernel of each function chosen in this process, and so in those forked from it.

    Takes a millisecond the first time; nothing happens where torch is not loaded.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return
    for dtype in (torch.float32, torch.float64):
        one = torch.full((1,), 0.5, dtype=dtype, device="cpu")  # too little for a second thread
        for name in FUNCTIONS:
            getattr(one, name)()
