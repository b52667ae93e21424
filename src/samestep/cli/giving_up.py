"""The end of a measurement whose workers wait for each other in vain."""

import os
import time
from typing import NoReturn

from samestep.base.place import Place
from samestep.cli.running import tell


def give_up(what: str, *, place: Place, timeout_s: float) -> NoReturn:
    """End this process, which waits for others in vain; rank 0 says so first.

    Args:
        what: does not end, in words.
        place: of this process.
        timeout_s: how long it may have taken.
    """
    if place.is_main:
        tell(
            f"error: {what} did not end within {timeout_s:g} s: the ranks wait for each other. What rightly "
            "takes longer needs a larger --timeout."
        )
    else:
        time.sleep(1)
    os._exit(1)
