"""What to try against each cause of a loss."""

import math
from collections.abc import Sequence
from itertools import zip_longest

from samestep.base.units import seconds_text
from samestep.scaling.study import Loss, Point, Seconds
from samestep.scaling.words import counted, told

_SMALL_S = 0.01
"""A step this short is about as long as what workers have to do to take it together."""

_WORTH_TRYING = 0.05
"""The least share of a step that it is worth doing something about."""

_MOST = 2
"""Things to try at once."""

_LARGER = "a larger batch (another training)"
_LARGER_EACH = "a larger batch for each worker (another training)"

_LARGER_OF = {
    "recipe": "a larger --batch-size (another training)",
    "steered": _LARGER,
    "native": _LARGER_EACH,
}
"""How each kind of training is given one."""

_SMALLER = {"nccl": "bf16", "xccl": "bf16", "gloo": "fp16"}
"""In which type of half the size torch's backends can sum what DDP exchanges."""

_LOADED = ("folder", "torchvision")
"""Data sets of recipes that processes may load; all others lie in memory."""

_OTHER = {
    "to_device": "pin_memory and copies with non_blocking",
    "optimizer": "a fused optimizer",
    "other": "less to print, log and compute between steps",
    "waiting": "--bind core, and nothing beside the workers on their machines",
}


def advice(point: Point, base: Point) -> str:
    """Return what to try for the two largest losses of `point`, as one sentence; empty where little is lost.

    Args:
        point: a number of workers.
        base: the fewest of its mode and variant.
    """
    if _is_too_small(point, base):
        step = seconds_text(sum(base.step_s.values()))
        fewest = counted(base.workers)
        return f"A step of {step} is too small to share out: stay with {fewest}, or try {_LARGER}."
    losses = [loss for loss in told(point) if loss.share >= _WORTH_TRYING]
    return trying([_against(loss, point, base) for loss in losses[:_MOST]])


def trying(remedies: Sequence[Sequence[str]]) -> str:
    """Return the first remedy of each cause, then others that there is room for; empty for none."""
    in_turn = (one for turn in zip_longest(*remedies) for one in turn if one)
    said = list(dict.fromkeys(in_turn))[:_MOST]
    return f"Try {'; '.join(said)}." if said else ""


def against_phase(phase: str, point: Point) -> Sequence[str]:
    """Return what to try where all workers of `point` take long for a phase that is not computing."""
    if phase != "data":
        return [_OTHER[phase]]
    return [] if _lies_in_memory(point) else [_loaders(point, point.step_s)]


def _is_too_small(point: Point, base: Point) -> bool:
    """Return whether a short step only became longer by having been shared out."""
    step_s = sum(base.step_s.values())
    return point.mode == "strong" and point.speedup < base.workers and 0 < step_s < _SMALL_S


def _against(loss: Loss, point: Point, base: Point) -> Sequence[str]:
    if loss.cause == "straggler":
        return [_against_straggler(loss, point)]
    if loss.cause == "exchange":
        return [_LARGER_OF.get(point.kind, _LARGER_EACH), *_against_exchange(point)]
    return _compute(point, base) if loss.cause == "compute" else against_phase(loss.cause, point)


def _against_straggler(loss: Loss, point: Point) -> str:
    slow = next((rank for rank in point.ranks if rank.rank == loss.rank), None)
    if loss.phase != "data" or slow is None:
        return "samestep doctor on all ranks, which names who differs"
    if _lies_in_memory(point):
        return f"another host for rank {slow.rank}"
    return f"another disk or host for rank {slow.rank}, or {_loaders(point, slow.step_s)}"


def _lies_in_memory(point: Point) -> bool:
    """Return whether the data set of a recipe is known, and no process loads its batches."""
    data = str(point.recipe.get("data") or "")
    return bool(data) and data.replace("@", ":").partition(":")[0] not in _LOADED


def _loaders(point: Point, step_s: Seconds) -> str:
    """Return how many processes may load the batches of such a step while the one before is computed.

    One process that loads between steps must become as many as keep up with the rest of a step, as far as
    there are processors for them. How many there are now, nobody has seen.
    """
    whole = sum(step_s.values())
    rest = whole - step_s.get("data", 0.0)
    count, why = math.ceil(whole / rest) if rest > 0 else 1, "or more than now"
    busy = (point.threads or 1) if point.device == "cpu" else 1
    free = max(1, point.processors - busy) if point.processors else count
    if free < count:
        count, why = free, "there are no processors for more"
    flag = "--loader-workers {}" if point.kind == "recipe" else "num_workers={} of its DataLoader"
    return f"{flag.format(count)} ({why})"


def _against_exchange(point: Point) -> Sequence[str]:
    """Return what else than the batch may make an exchange shorter, as far as it can be done there."""
    if point.kind == "recipe":
        return _of_recipe(point)
    if point.kind == "steered":
        return ["--split loader, which gathers nothing"]
    smaller = _smaller(point) if point.sync == "ddp" else None
    return [f"DDP's {smaller}_compress_hook"] if smaller else []


def _of_recipe(point: Point) -> Sequence[str]:
    """Return what of a recipe's exchange may be smaller or another, but for what is compared already."""
    if point.recipe.get("exact"):
        return []  # it exchanges in its own way
    is_compressed = point.recipe.get("compress", "none") != "none" or "compress=" in point.variant
    smaller = _smaller(point) if point.sync == "ddp" else "bf16"
    may_compress = point.sync in ("", "bucketed", "ddp") and not is_compressed
    said = [f"--compress {smaller}"] if may_compress and smaller else []
    is_fixed = "sync=" in point.variant or point.recipe.get("compress") == "powersgd"
    if is_fixed or point.recipe.get("algorithm") is not None or "algorithm=" in point.variant:
        return said
    return [*said, f"--compare sync={'bucketed' if is_compressed else 'flat'},ddp"]


def _smaller(point: Point) -> str | None:
    """Return the type of half the size in which DDP can exchange gradients; None where it can in none."""
    return _SMALLER.get(point.backend or ("gloo" if point.device == "cpu" else "nccl"))


def _compute(point: Point, base: Point) -> Sequence[str]:
    if shares_cores(point, base):
        return [f"--threads {point.threads} at every number of workers, to compare like with like"]
    if point.mode == "strong":
        larger = _LARGER_OF.get(point.kind, _LARGER)
        return [larger, "fewer workers, since small shares are slow"]
    if point.device == "cpu" and point.workers > point.nodes:
        return ["more machines, since the workers of one share its memory and caches"]
    return []


def shares_cores(point: Point, base: Point) -> bool:
    """Return whether the workers of `point` divide cores that a worker of `base` had for itself."""
    if point.device != "cpu" or point.threads is None or base.threads is None:
        return False
    return point.threads < base.threads
