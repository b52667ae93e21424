"""Aligns the parameters of runs whose optimizers hold them in other orders, in other groups, or in parts.

A step is recorded in the order of its optimizer's parameters and converted to the reference's order. A
parameter is identified by its name in the called models, or else by its shape and its initial values. If each
rank holds a part of the parameters, each value is taken from a rank that holds it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from samestep.verify.run_record import EQUAL, LostParameter, RunRecord, relative
from samestep.verify.tensor_summary import BUCKETS
from samestep.verify.trace import VECTORS, OptimizerParameter, Step, Trace

Places: TypeAlias = Sequence[Mapping[int, int]]
"""For each parameter of the reference: its index in a run's list, by the rank that holds it."""
Sketches: TypeAlias = npt.NDArray[np.float64]
"""One row of numbers for each parameter."""
_NO_SHAPE = (-1,)  # of a part whose whole is not known
OF_GROUPS = ("learning_rates", "weight_decays")
"""Fields of a step with a number for each group of parameters; for each parameter, if these were aligned."""


@dataclass(frozen=True, slots=True)
class Match:
    """The parameters of one optimizer of the reference in a run."""

    places: Places  # none for parameters that never change, or are left out
    lost: Sequence[LostParameter] = ()  # parameters that no rank has in an optimizer
    is_partial: bool = False  # whether parameters of ranks that compute one batch together have no match
    is_divided: bool = False  # whether a rank lacks a parameter, also outside of optimizers, that another has


class UnmatchedParametersError(Exception):
    """The parameters of two runs cannot be matched."""


def align_parameters(reference: RunRecord, *compared: RunRecord, drops: bool = False) -> Sequence[RunRecord]:
    """Return runs with the parameters of each step in the order of the first run.

    Args:
        reference: the first run.
        compared: further runs.
        drops: whether to leave out parameters that no optimizer of a run has, and those of ranks that compute
            one batch together if they have no match; `RunRecord.lost` and `has_unmatched` state that.

    Raises:
        UnmatchedParametersError: a parameter has no unambiguous match.
    """
    if all(_has_same_order(reference, run) for run in compared):
        return reference, *compared
    optimizers = range(len(reference.facts.parameters))
    if any(len(trace.facts.parameters) != len(optimizers) for run in compared for trace in run.traces):
        raise UnmatchedParametersError
    runs = (reference, *compared)
    matches = [[_matches(reference, run, optimizer, drops=drops) for optimizer in optimizers] for run in runs]
    places = [[match.places for match in of] for of in matches]
    # A parameter that an optimizer lacks was found to be constant, and is dropped from all runs.
    kept = [
        [index for index in range(len(reference.facts.parameters[k])) if all(of[k][index] for of in places)]
        for k in optimizers
    ]
    in_parts = any(match.lost or match.is_partial for of in matches for match in of) or any(
        0 < len(held) < len(run.traces)
        for run, of in zip(runs, places, strict=True)
        for some in of
        for held in some
    )
    parameters = [[reference.facts.parameters[k][index] for index in kept[k]] for k in optimizers]
    return [
        replace(
            _in_order(
                run,
                [[match.places[index] for index in kept[k]] for k, match in enumerate(of)],
                parameters,
                in_parts=in_parts,
            ),
            lost=[lost for match in of for lost in match.lost],
            holds_parts=any(match.is_divided for match in of),
            has_unmatched=any(match.is_partial for match in of),
        )
        for run, of in zip(runs, matches, strict=True)
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
    if run.facts.parts:
        return False
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


def _matches(reference: RunRecord, run: RunRecord, optimizer: int, *, drops: bool) -> Match:
    """Return the places of the reference's parameters in a run.

    Raises:
        UnmatchedParametersError: a parameter is not found.
    """
    usual = reference.facts.parameters[optimizer]
    by_rank: list[dict[int, int]] = [{} for _ in usual]
    unmatched: list[OptimizerParameter] = []
    for rank, trace in enumerate(run.traces):
        held = trace.facts.parameters[optimizer]
        pairs = _pairs(usual, trace, optimizer, by_rank, _first(reference.traces[0], optimizer))
        for index, place in pairs.items():
            by_rank[index][rank] = place
        unpaired = set(range(len(held))) - set(pairs.values())
        unmatched += [held[place] for place in unpaired if _changes(trace, optimizer, place)]
    shares = drops and run.shares_batch
    missing = [
        usual[index]
        for index, places in enumerate(by_rank)
        if not places and _changes(reference.traces[0], optimizer, index)
    ]
    if (unmatched and not shares) or (missing and not drops):
        raise UnmatchedParametersError
    known = {parameter.name for parameter in unmatched}
    matched = {parameter.name for parameter, places in zip(usual, by_rank, strict=True) if places}
    lost = _lost(reference, run, [parameter for parameter in missing if parameter.name not in known], matched)
    return Match(by_rank, lost, bool(unmatched), _is_divided(run, usual, by_rank))


def _is_divided(run: RunRecord, usual: Sequence[OptimizerParameter], by_rank: Places) -> bool:
    """Return whether a rank has no parameter, also in no optimizer, that another rank has."""
    outside = [{parameter.name for parameter in trace.facts.without_optimizer} for trace in run.traces]
    return any(
        places and rank not in places and parameter.name not in names
        for parameter, places in zip(usual, by_rank, strict=True)
        for rank, names in enumerate(outside)
    )


def _pairs(
    usual: Sequence[OptimizerParameter],
    trace: Trace,
    optimizer: int,
    known: Sequence[Mapping[int, int]],
    first: Sketches | None,
) -> dict[int, int]:
    """Return the places of the reference's parameters on one rank.

    Raises:
        UnmatchedParametersError: an optimizer's parameters have changed since its first step.
    """
    parts = trace.facts.parts
    held = [
        parameter._replace(name="", shape=_NO_SHAPE) if parameter.name in parts else parameter
        for parameter in trace.facts.parameters[optimizer]
    ]
    here, in_order = _first(trace, optimizer), {k: k for k in range(len(usual))}
    if first is None or here is None:
        return in_order if held == usual else _by_name(usual, held)
    has_all = (len(first), len(here)) == (len(usual), len(held))  # the sketches are of these parameters
    pairs = _as_stage(usual, held, known, first, here) if has_all else {}
    if not pairs and held == usual:
        return in_order
    if not pairs:
        if not has_all:
            raise UnmatchedParametersError
        # A name can be that of another parameter: each rank counts its own experts.
        pairs = _by_module(usual, held, first, here)
        pairs |= _by_content(usual, held, pairs, first, here)
        taken = set(pairs.values())
        named = _by_name(usual, held).items()
        pairs |= {k: place for k, place in named if k not in pairs and place not in taken}
    return pairs


def _lost(
    reference: RunRecord, run: RunRecord, missing: Sequence[OptimizerParameter], matched: Set[str]
) -> list[LostParameter]:
    """Return the missing parameters, and whether a model of a rank has them.

    A rank can have another name for a parameter; then its shape counts.
    """
    usual = {parameter.name for parameter in reference.facts.without_optimizer} | matched
    held = [
        parameter
        for trace in run.traces
        for parameter in trace.facts.without_optimizer
        if parameter.name not in usual
    ]
    names, shapes = {parameter.name for parameter in held}, {parameter.shape for parameter in held}
    return [
        LostParameter(parameter.name, parameter.name in names or parameter.shape in shapes)
        for parameter in missing
    ]


def _as_stage(
    usual: Sequence[OptimizerParameter],
    held: Sequence[OptimizerParameter],
    known: Sequence[Mapping[int, int]],
    first: Sketches,
    here: Sketches,
) -> dict[int, int]:
    """Return the places of a stage of a pipeline: parameters that follow each other in the reference.

    The names of a stage's modules count from its own beginning, and so do not count here.
    """
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


def _by_module(
    usual: Sequence[OptimizerParameter],
    held: Sequence[OptimizerParameter],
    first: Sketches,
    here: Sketches,
) -> dict[int, int]:
    """Return the places of parameters that agree in initial values, and whose modules do.

    Modules agree if a parameter of one has values that only one parameter of the other has. A bias of zeros
    says nothing, but belongs to the module of its weight.
    """
    modules: dict[str, str] = {}
    for place, parameter in enumerate(held):
        candidates = [
            k
            for k in range(len(usual))
            if usual[k].shape == parameter.shape and _agree(k, place, first, here)
        ]
        if len(candidates) == 1:
            modules.setdefault(_module(parameter.name), _module(usual[candidates[0]].name))
    indices = {parameter.name: k for k, parameter in enumerate(usual)}
    pairs: dict[int, int] = {}
    for place, parameter in enumerate(held):
        name = _module(parameter.name)
        index = indices.get(modules.get(name, name) + parameter.name.removeprefix(name))
        if index is None or index in pairs or not parameter.name:
            continue
        if usual[index].shape == parameter.shape and _agree(index, place, first, here):
            pairs[index] = place
    return pairs


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _agree(index: int, place: int, first: Sketches, here: Sketches) -> bool:
    """Return whether a parameter starts with the values of one of the reference."""
    return relative(here[place], first[index]) <= EQUAL


def _by_content(
    usual: Sequence[OptimizerParameter],
    held: Sequence[OptimizerParameter],
    known: Mapping[int, int],
    first: Sketches,
    here: Sketches,
) -> dict[int, int]:
    """Return the places of other parameters that agree in shape and initial values, in order if ambiguous."""
    free = [place for place in range(len(held)) if place not in set(known.values())]
    pairs = {}
    for index in range(len(usual)):
        if index in known:
            continue
        for place in free:
            if held[place].shape == usual[index].shape and _agree(index, place, first, here):
                pairs[index] = place
                free.remove(place)
                break
    return pairs


def _changes(trace: Trace, optimizer: int, place: int) -> bool:
    """Return whether a parameter has a gradient in any step."""
    block = slice(place * BUCKETS, (place + 1) * BUCKETS)
    return any(any(step.gradient[block]) for step in trace.steps if step.optimizer == optimizer)


def _in_order(
    run: RunRecord,
    places: Sequence[Places],
    parameters: Sequence[Sequence[OptimizerParameter]],
    *,
    in_parts: bool,
) -> RunRecord:
    """Return a run with its parameters in order; a rank gets those that it lacks from another rank."""
    # Each parameter has a learning rate of its own now.
    lists = [[parameter._replace(group=k) for k, parameter in enumerate(some)] for some in parameters]
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
            replace(
                trace,
                facts=replace(trace.facts, parameters=lists),
                steps=[*steps, *trace.steps[run.steps :]],
            )
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
        name: [np.array(getattr(step, name)).reshape(-1, BUCKETS) for step in steps] for name in VECTORS
    }
    if any(place >= len(blocks[name][owner]) for owner, place in sources for name in VECTORS):
        raise UnmatchedParametersError  # the optimizer's parameters have changed since
    gradient, before, after = (
        [float(number) for owner, place in sources for number in blocks[name][owner][place]]
        for name in VECTORS
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
