"""Selects what to try against each cause of overhead."""

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from samestep.base.units import seconds_text
from samestep.studies.scaling.analysis.point_text import counted, notable_losses
from samestep.studies.scaling.analysis.statements import finding
from samestep.studies.scaling.analysis.study import Finding, Loss, Point, Seconds

_SMALL_S = 0.01  # the length of a step below which the overhead of each worker is about as long as the step
_WORTH_TRYING = 0.05  # the smallest share of a step that advice is given for
_MOST = 2  # the number of things to try at once

# The larger batch by kind of training.
_LARGER = {"recipe": "a larger --batch-size", "native": "a larger batch for each worker"}

# The 16-bit type in which each of torch's backends can sum gradients for DDP.
_SMALLER = {"nccl": "bf16", "xccl": "bf16", "gloo": "fp16"}
_LOADED = ("folder", "torchvision")  # data sets of recipes that processes can load; all others are in memory
_OF_PHASE = {
    "to_device": "pin-memory",
    "optimizer": "fused-optimizer",
    "other": "less-other-work",
    "waiting": "bind-cores",
}


def advice(point: Point, base: Point) -> Sequence[Finding]:
    """Return what to try against the two largest losses of `point`; empty if little is lost."""
    base_s = sum(base.step_s.values())
    if point.mode == "strong" and point.efficiency * point.workers < base.workers and 0 < base_s < _SMALL_S:
        # Splitting a short step only made it longer.
        stay = _advice("stay-at-baseline", n=counted(base.workers), step=seconds_text(base_s))
        return [stay, _larger_batch(point)]
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
        return [_advice(_OF_PHASE[phase])]
    return [] if _is_in_memory(point) else [_loaders(point, point.step_s)]


def _advice(code: str, **facts: Any) -> Finding:
    return finding("advice", code, **facts)


def _larger_batch(point: Point) -> Finding:
    return _advice("larger-batch", what=_LARGER.get(point.kind, "a larger batch"))


def _against(loss: Loss, point: Point, base: Point) -> Sequence[Finding]:
    if loss.cause == "straggler":
        return [_against_straggler(loss, point)]
    if loss.cause == "exchange":
        return [_larger_batch(point), *_against_communication(point)]
    return _against_compute(point, base) if loss.cause == "compute" else against_phase(loss.cause, point)


def _against_straggler(loss: Loss, point: Point) -> Finding:
    slow = next((rank for rank in point.ranks if rank.rank == loss.rank), None)
    if loss.phase != "data" or slow is None:
        return _advice("doctor")
    if _is_in_memory(point):
        return _advice("other-host", rank=slow.rank)
    return _advice("other-disk", rank=slow.rank, loaders=_loaders(point, slow.step_s).words)


def _is_in_memory(point: Point) -> bool:
    """Return whether the point is of a recipe whose data set is in memory."""
    data = str(point.recipe.get("data") or "")
    return bool(data) and data.replace("@", ":").partition(":")[0] not in _LOADED


def _loaders(point: Point, step_s: Seconds) -> Finding:
    """Return the number of loader processes that can load a batch while the previous one is computed.

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
    flag = f"--loader-workers {count}" if point.kind == "recipe" else f"num_workers={count} of its DataLoader"
    return _advice("loader-workers", flag=flag, why=why)


def _against_communication(point: Point) -> Sequence[Finding]:
    """Return what makes communication shorter other than a larger batch, if this kind of training has it."""
    if point.kind == "recipe":
        return _of_recipe(point)
    if point.kind == "replicated":
        return [_advice("split-loader")]
    if point.kind == "once":
        return []
    smaller = _smaller(point) if point.sync == "ddp" else None
    return [_advice("ddp-compress-hook", dtype=smaller)] if smaller else []


def _of_recipe(point: Point) -> Sequence[Finding]:
    """Return settings of a recipe that make communication shorter and are not compared already."""
    if point.recipe.get("exact"):
        return []  # it has its own gradient synchronizer
    is_compressed = point.recipe.get("compress", "none") != "none" or "compress=" in point.variant
    smaller = _smaller(point) if point.sync == "ddp" else "bf16"
    can_compress = point.sync in ("", "bucketed", "ddp") and not is_compressed
    advised = [_advice("compress", dtype=smaller)] if can_compress and smaller else []
    is_fixed = "sync=" in point.variant or point.recipe.get("compress") == "powersgd"
    if is_fixed or point.recipe.get("algorithm") is not None or "algorithm=" in point.variant:
        return advised
    return [*advised, _advice("compare-sync", sync="bucketed" if is_compressed else "flat")]


def _smaller(point: Point) -> str | None:
    """Return the 16-bit type in which DDP can reduce gradients; None if there is none."""
    return _SMALLER.get(point.backend or ("gloo" if point.device == "cpu" else "nccl"))


def _against_compute(point: Point, base: Point) -> Sequence[Finding]:
    if point.device == "cpu" and 0 < (point.threads or 0) < (base.threads or 0):
        # The workers divide cores that a worker of the baseline had alone.
        return [_advice("same-threads", threads=point.threads)]
    if point.mode == "strong":
        return [_larger_batch(point), _advice("fewer-workers")]
    is_shared = point.device == "cpu" and point.workers > point.nodes
    return [_advice("more-machines")] if is_shared else []
