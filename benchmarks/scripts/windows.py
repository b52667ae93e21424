"""Windows of steps with and without exchange, in turn, timed by hand: for the scripts of `exposed.py`."""

import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from samestep.parallel.gradients.synchronizer import GradientSynchronizer
from samestep.ranks.world.process_group import ProcessGroupWorld

WARM_UP = 12
"""Steps before the first window."""


class Windows:
    """Begins and ends the windows.

    Args:
        file: where the seconds of all ranks' windows go, in the end.
        rounds: of a window with exchange and one without, in alternating order.
        steps: of each window. One more comes before them, untimed: it waits for ranks that come late.
        exchanging: told whether the ranks are to exchange.
        barrier: waits for all ranks.
        gather: returns the values of all ranks.
    """

    def __init__(
        self,
        file: Path,
        *,
        rounds: int,
        steps: int,
        exchanging: Callable[[bool], None],
        barrier: Callable[[], None],
        gather: Callable[[Any], list[Any]],
    ) -> None:
        self._file, self._windows, self._steps = file, 2 * rounds, steps
        self._exchanging, self._barrier, self._gather = exchanging, barrier, gather
        self._step = 0
        self._with = True
        self._began = (0.0, 0.0)
        self._rows: list[dict[str, Any]] = []

    def begin_step(self) -> bool:
        """Be told that a step begins, and return whether it is still one of a window, or before them."""
        window, within = divmod(self._step - WARM_UP, self._steps + 1)
        self._step += 1
        if window < 0 or window > self._windows:
            return window < 0
        if within == 0:
            if window:
                self._end()
            self._with = window % 4 in (0, 3)
            self._exchanging(True)
            self._barrier()
            if window == self._windows:
                self._file.write_text(json.dumps(self._gather(self._rows)))
            else:
                self._exchanging(self._with)
        elif within == 1:
            self._began = time.perf_counter(), time.time()
        return window < self._windows

    def _end(self) -> None:
        seconds = (time.perf_counter() - self._began[0]) / self._steps
        self._rows.append(
            {"exchange": self._with, "from": self._began[1], "to": time.time(), "seconds": seconds}
        )


def exchange_of_worlds() -> Callable[[bool], None]:
    """Return what switches all exchange of this process's Worlds off and on again.

    Without, gradients stay as they are, as within `samestep.accumulate`, and whatever else is exchanged is at
    once what it would be if all ranks had sent the same.
    """

    def nothing(*_, **__):
        pass

    def own_tensors(world, tensor):
        return [tensor.clone() for _ in range(world.place.size)]

    def own_values(world, value):
        return [value] * world.place.size

    alone = {
        "all_reduce": nothing,
        "broadcast": nothing,
        "all_gather": own_tensors,
        "all_gather_objects": own_values,
    }
    real = {name: getattr(ProcessGroupWorld, name) for name in alone}

    synchronizers: list[GradientSynchronizer] = []

    def switch(on: bool) -> None:
        for name, method in (real if on else alone).items():
            setattr(ProcessGroupWorld, name, method)
        if not synchronizers:  # to look through all objects takes longer than a step
            synchronizers.extend(one for one in gc.get_objects() if isinstance(one, GradientSynchronizer))
        for one in synchronizers:
            one._accumulating = not on  # noqa: SLF001 - accumulate() is for blocks

    return switch
