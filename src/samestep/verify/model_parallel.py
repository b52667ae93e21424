"""Recognizes ranks that compute one batch together, and joins what each of them has a part of.

Tensor and sequence parallelism that a script writes by hand have no types that name them. Ranks are such a
group if they get equal samples in every step and compute different values from them: they give different
tensors to the collectives of a forward, or hold parts of the reference's parameters. Copies that get equal
samples by mistake compute equal values. Under context parallelism each rank gets a part of every sample.

The place of a part is not known: it is assumed that ranks that follow each other hold the parts, in their
order, of equal sizes along one dimension. `joined_parts` checks that they make the whole at the start.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch.distributed as dist
from torch import Tensor

from samestep.ranks.world.process_group import adopt
from samestep.verify.run_record import EQUAL, RunRecord, Vector, differ, relative, same_samples
from samestep.verify.tensor_summary import BUCKETS, PartPlace
from samestep.verify.trace import VECTORS, Step, Trace


class Parts:
    """The places of this rank's parameters in those of the reference.

    Args:
        wholes: the shapes of the reference's parameters by name.
    """

    def __init__(self, wholes: Mapping[str, Sequence[int]]) -> None:
        self._wholes = wholes
        self._places: dict[int, PartPlace | None] = {}  # by id of the parameter

    def places(
        self, parameters: Sequence[Tensor], names: Callable[[], Mapping[int, str]]
    ) -> list[PartPlace | None] | None:
        """Return the place of each parameter, None for one that is no part; None if no parameter is one.

        Args:
            parameters: the parameters.
            names: returns the names of parameters by their ids.
        """
        if not self._wholes or not (dist.is_available() and dist.is_initialized()):
            return None
        if any(id(parameter) not in self._places for parameter in parameters):
            known = names()
            for parameter in parameters:
                self._places.setdefault(id(parameter), self._place(parameter, known.get(id(parameter), "")))
        places = [self._places[id(parameter)] for parameter in parameters]
        return places if any(places) else None

    def whole_of(self, parameter: Tensor) -> tuple[int, ...]:
        """Return the shape of the parameter that this is a part of, or is."""
        place = self._places.get(id(parameter))
        return tuple(parameter.shape) if place is None else place.shape

    def counts(self, names: Mapping[int, str]) -> dict[str, int]:
        """Return the number of parts of each parameter that is a part, by name."""
        return {
            names[key]: place.count
            for key, place in self._places.items()
            if place is not None and key in names
        }

    def _place(self, parameter: Tensor, name: str) -> PartPlace | None:
        here = adopt().place
        return place_in(tuple(self._wholes.get(name, ())), tuple(parameter.shape), here.rank, here.size)


def place_in(whole: tuple[int, ...], part: tuple[int, ...], rank: int, size: int) -> PartPlace | None:
    """Return the place of a part of a rank in a whole; None if their shapes do not allow that.

    Args:
        whole: shape of the whole.
        part: shape of the part.
        rank: the rank.
        size: number of ranks.
    """
    if len(whole) != len(part) or not all(part):
        return None
    dims = [dim for dim in range(len(whole)) if whole[dim] != part[dim]]
    if len(dims) != 1:
        return None
    (dim,) = dims
    count, rest = divmod(whole[dim], part[dim])
    if rest or count < 2 or size % count:
        return None
    return PartPlace(whole, dim, count, rank % count)


def grouped(run: RunRecord) -> RunRecord:
    """Return a run whose facts name the ranks that compute one batch together."""
    if run.runs_once or run.size == 1 or any(trace.facts.same_batch for trace in run.traces):
        return run
    groups: list[list[int]] = []
    for rank, trace in enumerate(run.traces):
        known = next((group for group in groups if _have_same_batches(run.traces[group[0]], trace)), None)
        if known is None:
            groups.append([rank])
        else:
            known.append(rank)
    of_rank = {rank: group for group in groups if _divides_model(run, group) for rank in group}
    traces = [
        replace(trace, facts=replace(trace.facts, same_batch=of_rank.get(rank, [])))
        for rank, trace in enumerate(run.traces)
    ]
    return replace(run, traces=traces)


def _have_same_batches(first: Trace, trace: Trace) -> bool:
    """Return whether two ranks get equal samples in every step."""
    pairs = [(a.samples, b.samples) for a, b in zip(first.steps, trace.steps, strict=False)]
    return any(samples for samples, _ in pairs) and all(a == b for a, b in pairs)


def _divides_model(run: RunRecord, ranks: Sequence[int]) -> bool:
    """Return whether ranks of one batch compute different values from it."""
    facts = [run.traces[rank].facts for rank in ranks]
    return len(ranks) > 1 and (
        all(rank_facts.parts for rank_facts in facts) or differ(rank_facts.exchanged for rank_facts in facts)
    )


def joined_parts(reference: RunRecord, run: RunRecord) -> RunRecord:
    """Return a run whose parameters are whole where the parts of several ranks make that of the reference.

    The other parts are still named in `Facts.parts`.
    """
    if run.runs_once or not all(trace.facts.parts for trace in run.traces):
        return run
    optimizers = range(len(reference.facts.parameters))
    for optimizer in optimizers:
        for place, name in enumerate(_names(run, optimizer)):
            if name in run.facts.parts and name in _names(reference, optimizer):
                run = _joined_part(reference, run, optimizer, place)
    return run


def _names(run: RunRecord, optimizer: int) -> list[str]:
    """Return the names of an optimizer's parameters, if all ranks have the same ones; none otherwise."""
    lists = [trace.facts.parameters[optimizer : optimizer + 1] for trace in run.traces]
    if any(parameters != lists[0] for parameters in lists) or not lists[0]:
        return []
    return [parameter.name for parameter in lists[0][0]]


def _joined_part(reference: RunRecord, run: RunRecord, optimizer: int, place: int) -> RunRecord:
    """Return a run in which one parameter is whole, or the same run if its parts do not make the whole."""
    name = run.facts.parameters[optimizer][place].name
    count = run.facts.parts[name]
    usual = [parameter.name for parameter in reference.facts.parameters[optimizer]]
    block = slice(place * BUCKETS, (place + 1) * BUCKETS)
    traces = [
        _with_sums(trace, run.traces[rank - rank % count : rank - rank % count + count], optimizer, block)
        for rank, trace in enumerate(run.traces)
    ]
    start, whole = (
        _start(trace, optimizer, k)
        for trace, k in ((traces[0], place), (reference.traces[0], usual.index(name)))
    )
    if start is None or whole is None or relative(start, whole) > EQUAL:
        return run
    return replace(run, traces=[_without_part(trace, name) for trace in traces])


def _with_sums(trace: Trace, members: Sequence[Trace], optimizer: int, block: slice) -> Trace:
    """Return a trace with the sums over some ranks in one block of the optimizer's vectors."""
    steps = []
    for index, step in enumerate(trace.steps):
        of_ranks = [member.steps[index] for member in members if index < len(member.steps)]
        if step.optimizer != optimizer or len(of_ranks) < len(members):
            steps.append(step)
            continue
        changed: dict[str, Any] = {}
        for vector in VECTORS:
            numbers = list(getattr(step, vector))
            numbers[block] = _sum([getattr(rank_step, vector)[block] for rank_step in of_ranks])
            changed[vector] = numbers
        steps.append(replace(step, **changed, gradient_norm=float("nan")))
    return replace(trace, steps=steps)


def _sum(of_ranks: Sequence[Sequence[float]]) -> list[float]:
    total: list[float] = np.sum(np.array(of_ranks, dtype=np.float64), axis=0).tolist()
    return total


def _start(trace: Trace, optimizer: int, place: int) -> Vector | None:
    """Return the sketch of a parameter before the optimizer's first step; None without a step."""
    first = next((step for step in trace.steps if step.optimizer == optimizer), None)
    return None if first is None else np.array(first.before[place * BUCKETS : (place + 1) * BUCKETS])


def _without_part(trace: Trace, name: str) -> Trace:
    parts = {part: count for part, count in trace.facts.parts.items() if part != name}
    return replace(trace, facts=replace(trace.facts, parts=parts))


def joined_sequences(reference: RunRecord, run: RunRecord) -> RunRecord:
    """Return a run with the reference's samples in its steps, if each rank has a part of every sample.

    The sums of the elements of the parts are then those of the samples, in the same order.
    """
    steps = range(min(run.steps, reference.steps))
    if run.runs_once or run.size == 1 or not steps:
        return run
    if not all(_makes_samples(run.of_ranks(step), reference.at(step)) for step in steps):
        return run
    return replace(
        run,
        traces=[
            replace(
                trace,
                steps=[
                    replace(step, samples=list(reference.at(k).samples) if not rank else [])
                    if k in steps
                    else step
                    for k, step in enumerate(trace.steps)
                ],
            )
            for rank, trace in enumerate(run.traces)
        ],
    )


def _makes_samples(ranks: Sequence[Step], usual: Step) -> bool:
    """Return whether the parts of several ranks make the samples of a step."""
    sums = [rank_step.sums for rank_step in ranks if rank_step.samples]
    if len(sums) < 2 or any(len(of_rank) != len(usual.sums) for of_rank in sums) or not usual.sums:
        return False
    return same_samples(np.array(_sum(sums)), np.array(usual.sums))
