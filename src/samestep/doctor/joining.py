"""Checks that all ranks can join as a training does, and that a sum over all of them is right."""

import time

from samestep.base import env
from samestep.base.errors import Error
from samestep.base.units import seconds_text
from samestep.doctor.context import Context
from samestep.doctor.results import Result, problem

ON_TIMEOUT = (
    "Joining the other ranks, or the first sum over all, did not end within {limit:g} s. "
    "See the other findings; with NCCL, set NCCL_DEBUG=INFO and read the output of its ranks."
)
_VALUES = 2**18
_TIMES = 5
_JOIN_S = 15.0


def check(_: Context) -> Result:
    """Join the other ranks as a training does, and sum numbers over all of them."""
    try:
        return _sum(time.perf_counter())
    except Error as error:
        reason = error.__cause__ or error  # its text has no rank, so that equal findings of ranks are merged
        text = f"The ranks cannot join each other as a training does: {str(reason).splitlines()[0]}"
    except RuntimeError as error:  # raised by torch in a collective
        text = f"The first sum over all ranks failed: {str(error).splitlines()[0]}"
    return Result(findings=[problem(text)])


def _sum(begin: float) -> Result:
    import torch

    from samestep.ranks.world.join import join

    with env.exported({"SAMESTEP_BANNER": "0"}), join(timeout_s=_JOIN_S) as world:
        joined_s = time.perf_counter() - begin
        size = world.place.size
        best = float("inf")
        for _ in range(_TIMES):
            numbers = torch.full((_VALUES,), float(world.place.rank + 1), device=world.device)
            world.barrier()
            start = time.perf_counter()
            world.all_reduce(numbers)
            wrong = int((numbers != size * (size + 1) / 2).sum().item())
            best = min(best, time.perf_counter() - start)
    text = f"joined in {seconds_text(joined_s)}; a sum of 1 MiB over all takes {seconds_text(best)}"
    if not wrong:
        return Result(rows=[("together", f"{text}, and is right")])
    finding = f"A sum over all ranks is wrong in {wrong} of {_VALUES} places. Do not train here; report it."
    return Result(rows=[("together", text)], findings=[problem(finding)])
