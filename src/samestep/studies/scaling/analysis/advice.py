"""Selects what to try against each cause of overhead."""

import math
from collections.abc import Sequence
from functools import partial
from itertools import zip_longest

from samestep.base.units import seconds_text
from samestep.studies.scaling.analysis.point_text import counted, notable_losses
from samestep.studies.scaling.analysis.study import Finding, Loss, Point, Seconds

_SMALL_S = 0.01
"""The length of a step below which the overhead of each worker is about as long as the step."""

_WORTH_TRYING = 0.05
"""The smallest share of a step that advice is given for."""

_MOST = 2
"""The number of things to try at once."""


_advice = partial(Finding, "advice")

_LARGER = _advice("larger-batch", "a larger batch (another training)")
_LARGER_EACH = _advice("larger-batch", "a larger batch for each worker (another training)")

_LARGER_OF = {
    "recipe": _advice("larger-batch", "a larger --batch-size (another training)"),
    "steered": _LARGER,
    "native": _LARGER_EACH,
}
"""By kind of training."""

_SMALLER = {"nccl": "bf16", "xccl": "bf16", "gloo": "fp16"}
"""The 16-bit type in which each of torch's backends can sum gradients for DDP."""

_LOADED = ("folder", "torchvision")
"""Data sets of recipes that processes can load; all others are in memory."""

_OTHER = {
    "to_device": _advice("pin-memory", "pin_memory and copies with non_blocking"),
    "optimizer": _advice("fused-optimizer", "a fused optimizer"),
    "other": _advice("less-other-work", "less to print, log and compute between steps"),
    "waiting": _advice("bind-cores", "--bind core, and no other program on the workers' machines"),
}


def advice(point: Point, base: Point) -> Sequence[Finding]:
    """Return what to try against the two largest losses of `point`; empty if little is lost.

    Args:
        point: a number of workers.
        base: the baseline of its mode and variant.
    """
    if _is_too_small(point, base):
        step = seconds_text(sum(base.step_s.values()))
        stay = f"{counted(base.workers)}, since a step of {step} is too small to be split"
        return [_advice("stay-at-baseline", stay), _LARGER]
    losses = [loss for loss in notable_losses(point) if loss.share >= _WORTH_TRYING]
    return chosen([_against(loss, point, base) for loss in losses[:_MOST]])


def chosen(remedies: Sequence[Sequence[Finding]]) -> Sequence[Finding]:
    """Return the first remedy of each cause, then second ones, up to the limit."""
    by_rank = (one for rank in zip_longest(*remedies) for one in rank if one)
    return list(dict.fromkeys(by_rank))[:_MOST]


def advice_words(advised: Sequence[Finding]) -> str:
    """Return advice as one sentence; empty for none."""
    return f"Try {'; '.join(one.words for one in advised)}." if advised else ""


def against_phase(phase: str, point: Point) -> Sequence[Finding]:
    """Return what to try if all workers of `point` take long for a phase other than computing."""
    if phase != "data":
        return [_OTHER[phase]]
    return [] if _is_in_memory(point) else [_loaders(point, point.step_s)]


def _is_too_small(point: Point, base: Point) -> bool:
    """Return whether splitting a short step only made it longer."""
    step_s = sum(base.step_s.values())
    return point.mode == "strong" and point.speedup < base.workers and 0 < step_s < _SMALL_S


def _against(loss: Loss, point: Point, base: Point) -> Sequence[Finding]:
    if loss.cause == "straggler":
        return [_against_straggler(loss, point)]
    if loss.cause == "exchange":
        return [_LARGER_OF.get(point.kind, _LARGER_EACH), *_against_communication(point)]
    return _against_compute(point, base) if loss.cause == "compute" else against_phase(loss.cause, point)


def _against_straggler(loss: Loss, point: Point) -> Finding:
    slow = next((rank for rank in point.ranks if rank.rank == loss.rank), None)
    if loss.phase != "data" or slow is None:
        return _advice("doctor", "samestep doctor on all ranks, which names the rank that differs")
    if _is_in_memory(point):
        return _advice("other-host", f"another host for rank {slow.rank}")
    loaders = _loaders(point, slow.step_s)
    return _advice("other-disk", f"another disk or host for rank {slow.rank}, or {loaders.words}")


def _is_in_memory(point: Point) -> bool:
    """Return whether the point is of a recipe whose data set is in memory."""
    data = str(point.recipe.get("data") or "")
    return bool(data) and data.replace("@", ":").partition(":")[0] not in _LOADED


def _loaders(point: Point, step_s: Seconds) -> Finding:
    """Return the number of loader processes that can load a batch while the one before is computed.

    It is derived from one process that loads between steps, since the current number is not recorded, and
    limited by the available cores.
    """
    whole = sum(step_s.values())
    rest = whole - step_s.get("data", 0.0)
    count, why = math.ceil(whole / rest) if rest > 0 else 1, "or more than now"
    busy = (point.threads or 1) if point.device == "cpu" else 1
    free = max(1, point.processors - busy) if point.processors else count
    if free < count:
        count, why = free, "there are no cores for more"
    flag = "--loader-workers {}" if point.kind == "recipe" else "num_workers={} of its DataLoader"
    return _advice("loader-workers", f"{flag.format(count)} ({why})")


def _against_communication(point: Point) -> Sequence[Finding]:
    """Return what makes communication shorter other than a larger batch, if this kind of training has it."""
    if point.kind == "recipe":
        return _of_recipe(point)
    if point.kind == "steered":
        return [_advice("split-loader", "--split loader, which gathers nothing")]
    smaller = _smaller(point) if point.sync == "ddp" else None
    return [_advice("ddp-compress-hook", f"DDP's {smaller}_compress_hook")] if smaller else []


def _of_recipe(point: Point) -> Sequence[Finding]:
    """Return settings of a recipe that make communication shorter and are not compared already."""
    if point.recipe.get("exact"):
        return []  # it has its own gradient synchronizer
    is_compressed = point.recipe.get("compress", "none") != "none" or "compress=" in point.variant
    smaller = _smaller(point) if point.sync == "ddp" else "bf16"
    can_compress = point.sync in ("", "bucketed", "ddp") and not is_compressed
    advised = [_advice("compress", f"--compress {smaller}")] if can_compress and smaller else []
    is_fixed = "sync=" in point.variant or point.recipe.get("compress") == "powersgd"
    if is_fixed or point.recipe.get("algorithm") is not None or "algorithm=" in point.variant:
        return advised
    compare = f"--compare sync={'bucketed' if is_compressed else 'flat'},ddp"
    return [*advised, _advice("compare-sync", compare)]


def _smaller(point: Point) -> str | None:
    """Return the 16-bit type in which DDP can reduce gradients; None if there is none."""
    return _SMALLER.get(point.backend or ("gloo" if point.device == "cpu" else "nccl"))


def _against_compute(point: Point, base: Point) -> Sequence[Finding]:
    if point.device == "cpu" and 0 < (point.threads or 0) < (base.threads or 0):
        # The workers divide cores that a worker of the baseline had alone.
        same = f"--threads {point.threads} at every number of workers, to compare like with like"
        return [_advice("same-threads", same)]
    if point.mode == "strong":
        fewer = _advice("fewer-workers", "fewer workers, since small shards are slow")
        return [_LARGER_OF.get(point.kind, _LARGER), fewer]
    if point.device == "cpu" and point.workers > point.nodes:
        more = "more machines, since the workers of one share its memory and caches"
        return [_advice("more-machines", more)]
    return []
