"""Two runs of one training, compared step by step; what rounding does is known from a third."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TypeAlias

import numpy as np

from samestep.study.seen import Seen, Vector, relative

Measure: TypeAlias = Callable[[Seen, Seen, int], float]
MARGIN = 100.0
"""How many times more a run may deviate than one whose gradients were disturbed by rounding."""
ROUNDING = 16.0
"""How many units in the last place the result of a step may be off for nothing but rounding."""
_HALF = 1e-4
"""Types with a coarser unit in the last place leave no room for a margin: their rounding is itself large."""
_MOST_FOR_HALF = 0.1
_AT_FIRST = 2.0
"""Units in the last place of a half type that a sum over many elements may be off before the first update."""
MOST = 0.3
"""What is off by more is no rounding, unless the disturbed run is."""
_SAME_RATE = 1e-9
"""Relative; learning rates are computed in double precision."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """How far a run is from the reference, and how far it may be."""

    quantity: str
    step: int
    value: float
    allowed: float

    @property
    def is_rounding(self) -> bool:
        """Whether rounding explains it."""
        return self.value <= self.allowed


def deviations(reference: Seen, seen: Seen, control: Seen) -> list[Deviation]:
    """Return the deviation of each quantity in each step, in order of the steps.

    Args:
        reference: the run on one worker.
        seen: the run to be compared with it.
        control: the reference again, its gradients disturbed by rounding.
    """
    found = []
    envelope: dict[str, float] = {}
    for step in range(min(reference.steps, seen.steps)):
        for quantity, measure in MEASURES.items():
            # Of the step after as well: rounding may show a step earlier on one way than on the other.
            ahead = [one for one in (step, step + 1) if one < min(reference.steps, control.steps)]
            most = max((measure(control, reference, one) for one in ahead), default=0.0)
            envelope[quantity] = max(envelope.get(quantity, 0.0), most)
            allowed = (
                _AT_FIRST * reference.facts.epsilon
                if step == 0 and quantity in _SUMS and is_half(reference)
                else _allowed(envelope[quantity], _floor(quantity, reference, step))
            )
            found.append(Deviation(quantity, step, measure(seen, reference, step), allowed))
    return found


def is_half(run: Seen) -> bool:
    """Return whether a run computes in a type of which two roundings are near a per cent."""
    return run.facts.epsilon > _HALF


def beginning(reference: Seen, control: Seen) -> list[Deviation]:
    """Return how far two runs of one script begin from each other: before anything is disturbed."""
    allowed = rounding_of(reference.facts.epsilon)
    one, other = control.at(0), reference.at(0)
    return [
        Deviation(quantity, 0, relative(np.array(a), np.array(b)), allowed)
        for quantity, a, b in (
            ("parameters", one.before, other.before),
            ("loss", one.losses[:1], other.losses[:1]),
        )
    ]


def largest(found: Sequence[Deviation]) -> dict[str, float]:
    """Return the largest deviation of each quantity."""
    return {name: max((one.value for one in found if one.quantity == name), default=0.0) for name in MEASURES}


def rounding_of(epsilon: float) -> float:
    """Return how far results may be off that are computed in a type with this unit in the last place."""
    if epsilon > _HALF:
        return min(ROUNDING * epsilon, _MOST_FOR_HALF)
    return MARGIN * ROUNDING * epsilon


def _allowed(usual: float, floor: float) -> float:
    """Return how far a run may deviate where the disturbed one deviates as far as `usual`."""
    grown = MARGIN * usual
    return max(floor, grown if usual > MOST else min(grown, MOST))


def _floor(quantity: str, reference: Seen, step: int) -> float:
    if quantity == "learning rate":
        return _SAME_RATE
    rounding = rounding_of(reference.facts.epsilon)
    if quantity != "update":
        return rounding
    # An update is the difference of two parameters that are rounded each.
    moved = float(np.linalg.norm(reference.update(step)))
    size = float(np.linalg.norm(reference.parameters(step)))
    return rounding + rounding_of(reference.facts.parameter_epsilon) * size / moved if moved else np.inf


def _loss(one: Seen, other: Seen, step: int) -> float:
    target = other.losses(step)[0]
    scale = max(abs(target), 1e-3 * abs(other.losses(0)[0]))
    distances = [abs(loss - target) for loss in one.losses(step)]
    if np.isnan(target):
        return 0.0 if np.isnan(one.losses(step)[0]) else float("inf")
    best = min(distances)
    return best / scale if scale else (0.0 if not best else float("inf"))


def _gradient_norm(one: Seen, other: Seen, step: int) -> float:
    return relative(_number(one.at(step).gradient_norm), _number(other.at(step).gradient_norm))


MEASURES: Mapping[str, Measure] = {
    "learning rate": lambda one, other, step: relative(
        np.array(one.at(step).learning_rates), np.array(other.at(step).learning_rates)
    ),
    "loss": _loss,
    "gradient": lambda one, other, step: relative(one.gradient(step), other.gradient(step)),
    "gradient norm": _gradient_norm,
    "update": lambda one, other, step: relative(one.update(step), other.update(step)),
    "parameters": lambda one, other, step: relative(one.parameters(step), other.parameters(step)),
}


_SUMS = ("loss", "gradient norm")
"""Of many elements, each rounded for itself: they are off by less than the elements."""


def _number(value: float) -> Vector:
    return np.array([value])


_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|\bnan\b|\binf\b")

_TIME = re.compile(
    r"\b(?:time|took|elapsed|eta|speed|throughput|duration)\b\W*[\d.:]+"
    r"|[\d.]+\s*(?:ms|s|secs?|seconds?|mins?|minutes?|h|hours?|\w+/s(?:ec)?)\b"
    r"|\d+(?::\d\d)+(?:\.\d+)?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Printed:
    """A printed number that deviates more than it may.

    Args:
        value: how far.
        line: where it is.
        is_own_loss: whether it is the loss of rank 0's share in a step whose loss the reference prints.
    """

    value: float
    line: str
    is_own_loss: bool


def printed_deviations(reference: Seen, seen: Seen, control: Seen) -> list[Printed]:
    """Return the printed numbers that deviate by more than they may.

    Times and rates say nothing, nor do numbers that differ between two serial runs by more than rounding,
    nor what each worker of a distributed script says of its share: half as many samples, or batches.
    """
    size = 1 if seen.is_replicated else seen.size
    rounding = rounding_of(reference.facts.epsilon)
    lines, again, other = (_timeless(one.facts.printed).splitlines() for one in (reference, control, seen))
    found = []
    for i, j in _pairs(lines, other):
        same_line = "".join(again[i : i + 1])
        numbers, others, usual = (_NUMBER.findall(line) for line in (lines[i], other[j], same_line))
        for k, (of, one) in enumerate(zip(numbers, others, strict=True)):
            if of == one or _is_share(of, one, size):
                continue
            known = _apart(of, usual[k]) if len(usual) == len(numbers) else 0.0
            value = _apart(of, one)
            if not value <= _allowed(known, rounding) + 2 * _last_digit(of) / max(abs(float(of)), 1e-12):
                found.append(Printed(value, other[j], _is_own_loss(of, one, reference, seen)))
    return found


def _apart(of: str, one: str) -> float:
    return abs(float(of) - float(one)) / max(abs(float(of)), 1e-12) if of != one else 0.0


def _is_own_loss(of: str, one: str, reference: Seen, seen: Seen) -> bool:
    """Return whether two numbers are the losses that rank 0 and the reference differentiated in one step."""
    if seen.is_replicated or not _last_digit(one):
        return False
    pairs = (
        pair
        for step in range(min(reference.steps, seen.steps))
        for pair in zip(reference.at(step).losses, seen.at(step).losses, strict=False)
    )
    return any(
        abs(float(of) - usual) <= _last_digit(of) and abs(float(one) - own) <= _last_digit(one)
        for usual, own in pairs
    )


def _timeless(text: str) -> str:
    return _TIME.sub("~", text)


def _pairs(lines: Sequence[str], others: Sequence[str]) -> list[tuple[int, int]]:
    """Return which lines go with which, by their words."""
    one, other = ([_NUMBER.sub("#", line) for line in some] for some in (lines, others))
    if one == other:
        return [(i, i) for i in range(len(lines))]
    blocks = SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks()
    return [(block.a + k, block.b + k) for block in blocks for k in range(block.size)]


def _is_share(of: str, one: str, size: int) -> bool:
    """Return whether a count is that of one of `size` workers, or their number itself."""
    if not (of.isdecimal() and one.isdecimal()):
        return False
    return int(one) in (int(of) * size, int(of) // size, -(-int(of) // size))


def _last_digit(text: str) -> float:
    """Return what one is in the last digit of a printed number; nothing of a whole one, which is exact."""
    digits, _, exponent = text.lower().partition("e")
    decimals = digits.partition(".")[2]
    return 10.0 ** (int(exponent or 0) - len(decimals)) if decimals or exponent else 0.0
