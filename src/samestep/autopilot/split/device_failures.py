"""Recognizes the errors after which a device computes nothing any more."""

import re

_FINAL = re.compile(
    r"(CUDA|HIP)( driver)? error: .*(assert|illegal|misaligned|launch fail|uncorrectable|hardware stack"
    r"|invalid program counter|invalid address space)"
)


def is_device_failure(error: BaseException) -> bool:
    """Return whether an error ends all computations on a device, unlike one of memory or of an argument."""
    return isinstance(error, RuntimeError) and bool(_FINAL.search(str(error)))
