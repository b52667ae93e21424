"""Aligns the parameters of runs whose optimizers hold them in other orders, in other groups, or in parts.

A step is recorded in the order of its optimizer's parameters and converted to the reference's order. A
parameter is identified by its name in the called models, or else by its shape and its initial values. If each
rank holds a part of the parameters, each value is taken from a rank that holds it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from samestep.verify.run_record import EQUAL, RunRecord, relative
from samestep.verify.tensor_summary import BUCKETS
from samestep.verify.trace import OptimizerParameter, Step, Trace

Places: TypeAlias = Sequence[Mapping[int, int]]
"""For each parameter of the reference: its index in a run's list, by the rank that holds it."""
Sketches: TypeAlias = npt.NDArray[np.float64]
"""One row of numbers for each parameter."""
_VECTORS = ("gradient", "before", "after")
"""Fields of a step with `BUCKETS` numbers for each parameter."""
OF_GROUPS = ("learning_rates", "weight_decays")
"""Fields of a step with a number for each group of parameters; for each parameter, if these were aligned."""


class UnmatchedParametersError(Exception):
    """The parameters of two runs cannot be matched."""


def align_parameters(reference: RunRecord, *compared: RunRecord) -> Sequence[RunRecord]:
    """Return runs with the parameters of each step in the order of the first run.

    Raises:
        UnmatchedParametersError: a parameter has no unambiguous match.
    """
    if all(_has_same_order(reference, run) for run in compared):
        return reference, *compared
    optimizers = range(len(reference.facts.parameters))
    if any(len(trace.facts.parameters) != len(optimizers) for run in compared for trace in run.traces):
        raise UnmatchedParametersError
    runs = (reference, *compared)
    places = [[_places(reference, run, optimizer) for optimizer in optimizers] for run in runs]
    # A parameter that an optimizer lacks was found to be constant, and is dropped from all runs.
    kept = [
        [index for index in range(len(reference.facts.parameters[k])) if all(of[k][index] for of in places)]
        for k in optimizers
    ]
    in_parts = any(
        0 < len(held) < len(run.traces)
        for run, of in zip(runs, places, strict=True)
        for some in of
        for held in some
    )
    return [
        _in_order(run, [[of[k][index] for index in kept[k]] for k in optimizers], in_parts=in_parts)
        for run, of in zip(runs, places, strict=True)
    ]


def drop_parameters(run: RunRecord) -> RunRecord:
    """Return a run without its parameters and gradients."""

    def bare(step: Step) -> Step:
        of_groups: dict[str, Any] = {name: sorted(set(getattr(step, name))) for name in OF_GROUPS}
        return replace(step, **of_groups, gradient=[], before=[], after=[], gradient_norm=0.0)

    return replace(
        run, traces=[replace(trace, steps=[bare(step) for step in trace.steps]) for trace in run.traces]
    )


def _has_same_order(reference: RunRecord, run: RunRecord) -> bool:
    """Return whether a run's parameters are in the order of the reference's."""
    usual = reference.facts.parameters
    lists = [trace.facts.parameters for trace in run.traces]
    if not usual or not all(lists) or all(parameters == usual for parameters in lists):
        return True
    nameless = [
        [[(held.shape, held.group) for held in of_optimizer] for of_optimizer in parameters]
        for parameters in (usual, *lists)
    ]
    if any(parameters != nameless[0] for parameters in nameless):
        return False
    first, here = (_first(trace, 0) for trace in (reference.traces[0], run.traces[0]))
    return first is None or here is None or relative(here, first) <= EQUAL


def _first(trace: Trace, optimizer: int) -> Sketches | None:
    """Return the sketches of an optimizer's parameters before its first step, one row each."""
    step = next(
        (candidate for candidate in trace.steps if candidate.optimizer == optimizer and not candidate.joined),
        None,
    )
    return None if step is None else np.array(step.before).reshape(-1, BUCKETS)


def _places(reference: RunRecord, run: RunRecord, optimizer: int) -> Places:
    """Return the places of the reference's parameters in a run; none for parameters that never change.

    Raises:
        UnmatchedParametersError: a parameter is not found.
    """
    usual = reference.facts.parameters[optimizer]
    by_rank: list[dict[int, int]] = [{} for _ in usual]
    for rank, trace in enumerate(run.traces):
        held = trace.facts.parameters[optimizer]
        first, here = _first(reference.traces[0], optimizer), _first(trace, optimizer)
        pairs = _as_stage(usual, held, by_rank, first, here)
        if not pairs:
            pairs = {k: k for k in range(len(usual))} if held == usual else _by_name(usual, held)
            pairs |= _by_content(usual, held, pairs, first, here)
        for index, place in pairs.items():
            by_rank[index][rank] = place
        unmatched = set(range(len(held))) - set(pairs.values())
        if any(_changes(trace, optimizer, place) for place in unmatched):
            raise UnmatchedParametersError
    missing = [index for index, places in enumerate(by_rank) if not places]
    if any(_changes(reference.traces[0], optimizer, index) for index in missing):
        raise UnmatchedParametersError
    return by_rank


def _as_stage(
    usual: Sequence[OptimizerParameter],
    held: Sequence[OptimizerParameter],
    known: Sequence[Mapping[int, int]],
    first: Sketches | None,
    here: Sketches | None,
) -> dict[int, int]:
    """Return the places of a stage of a pipeline: parameters that follow each other in the reference.

    The names of a stage's modules count from its own beginning, and so do not count here.
    """
    if first is None or here is None or (len(first), len(here)) != (len(usual), len(held)):
        return {}
    shapes, held_shapes = [parameter.shape for parameter in usual], [parameter.shape for parameter in held]
    for start in range(len(usual) - len(held) + 1 if len(held) < len(usual) else 0):
        part = slice(start, start + len(held))
        if (
            shapes[part] == held_shapes
            and not any(known[part])
            and all(relative(a, b) <= EQUAL for a, b in zip(here, first[part], strict=True))
        ):
            return {start + place: place for place in range(len(held))}
    return {}


def _by_name(usual: Sequence[OptimizerParameter], held: Sequence[OptimizerParameter]) -> dict[int, int]:
    """Return the places of parameters that agree in name and shape."""
    counts = [Counter(parameter.name for parameter in some) for some in (usual, held)]
    places = {
        parameter.name: place
        for place, parameter in enumerate(held)
        if parameter.name and counts[1][parameter.name] == 1
    }
    return {
        index: place
        for index, parameter in enumerate(usual)
        if counts[0][parameter.name] == 1
        and (place := places.get(parameter.name)) is not None
        and held[place].shape == parameter.shape
    }


def _by_content(
    usual: Sequence[OptimizerParameter],
    held: Sequence[OptimizerParameter],
    known: Mapping[int, int],
    first: Sketches | None,
    here: Sketches | None,
) -> dict[int, int]:
    """Return the places of other parameters that agree in shape and initial values, in order if ambiguous."""
    if first is None or here is None:
        return {}
    if (len(first), len(here)) != (len(usual), len(held)):
        raise UnmatchedParametersError
    free = [place for place in range(len(held)) if place not in set(known.values())]
    pairs = {}
    for index in range(len(usual)):
        if index in known:
            continue
        for place in free:
            if held[place].shape == usual[index].shape and relative(here[place], first[index]) <= EQUAL:
                pairs[index] = place
                free.remove(place)
                break
    return pairs


def _changes(trace: Trace, optimizer: int, place: int) -> bool:
    """Return whether a parameter has a gradient in any step."""
    block = slice(place * BUCKETS, (place + 1) * BUCKETS)
    return any(any(step.gradient[block]) for step in trace.steps if step.optimizer == optimizer)


def _in_order(run: RunRecord, places: Sequence[Places], *, in_parts: bool) -> RunRecord:
    """Return a run with its parameters in order; a rank gets those that it lacks from another rank."""
    made = [
        [
            _step(run, places[step.optimizer], rank, index, in_parts=in_parts)
            for index, step in enumerate(steps)
        ]
        for rank, steps in enumerate(trace.steps[: run.steps] for trace in run.traces)
    ]
    return replace(
        run,
        traces=[
            replace(trace, steps=[*steps, *trace.steps[run.steps :]])
            for trace, steps in zip(run.traces, made, strict=True)
        ],
    )


def _step(run: RunRecord, places: Places, rank: int, index: int, *, in_parts: bool) -> Step:
    sources = [
        (owner, held[owner])
        for held in places
        for owner in [0 if run.runs_once else rank if rank in held else min(held)]
    ]
    steps = [trace.steps[index] for trace in run.traces]
    if steps[rank].joined:
        return steps[rank]
    blocks = {
        name: [np.array(getattr(step, name)).reshape(-1, BUCKETS) for step in steps] for name in _VECTORS
    }
    if any(place >= len(blocks[name][owner]) for owner, place in sources for name in _VECTORS):
        raise UnmatchedParametersError  # the optimizer's parameters have changed since
    gradient, before, after = (
        [float(number) for owner, place in sources for number in blocks[name][owner][place]]
        for name in _VECTORS
    )
    norm = float(np.linalg.norm(gradient)) if in_parts else steps[rank].gradient_norm
    of_groups: dict[str, Any] = {name: _of_groups(name, run, sources, index) for name in OF_GROUPS}
    return replace(
        steps[rank], **of_groups, gradient=gradient, before=before, after=after, gradient_norm=norm
    )


def _of_groups(name: str, run: RunRecord, sources: Sequence[tuple[int, int]], index: int) -> list[float]:
    """Return, for each parameter, the number that a step records for the parameter's group."""
    numbers = []
    for owner, place in sources:
        step, lists = run.traces[owner].steps[index], run.traces[owner].facts.parameters
        if of_groups := getattr(step, name):
            numbers.append(of_groups[lists[step.optimizer][place].group])
    return numbers
