"""A draw of a slice is matched with a draw of the equivalence check, or it is unknown."""

from types import SimpleNamespace

import pytest
import torch

from samestep.autopilot.split.draw_plans import DrawPlan, DrawRecord, DrawType, PlannedDraw
from samestep.autopilot.split.random_draws import GlobalDraws

RAND = "aten.rand"


def planned(shape, dim, every=1):
    return PlannedDraw(DrawRecord(DrawType(RAND, len(shape)), shape, tuple(range(len(shape)))), dim, every)


MASK, NOISE, BY_TIME = planned((8, 3), 0), planned((4, 3), None), planned((5, 8, 3), 1)


@pytest.mark.parametrize(
    ("plan", "shape", "found"),
    [
        ((MASK,), (4, 3), MASK),
        ((NOISE,), (4, 3), NOISE),
        ((MASK,), (4, 1), None),  # four time steps, in a slice of four samples
        ((MASK, NOISE), (4, 3), None),
        ((MASK, MASK), (4, 3), MASK),
        ((BY_TIME,), (5, 4, 3), BY_TIME),
        ((BY_TIME,), (4, 4, 3), None),
        ((planned((16, 3), 0, every=2),), (8, 3), planned((16, 3), 0, every=2)),
    ],
)
def test_a_draw_is_repeated_if_only_its_number_of_samples_differs(plan, shape, found):
    assert DrawPlan(plan, inner=False).repeated(DrawType(RAND, len(shape)), shape, 4) == found


def draws(plan, *shapes):
    """Return the unknown draws of a slice of four of eight samples."""
    mode = GlobalDraws(SimpleNamespace(local=4, total=8, start=0), DrawPlan(plan, inner=False))
    with torch.random.fork_rng(), mode:
        for shape in shapes:
            torch.rand(shape)
    mode.end()
    return mode.unknown


def test_a_draw_in_another_shape_is_found_by_its_number():
    assert not draws((BY_TIME, MASK), (7, 4, 3), (4, 3))


@pytest.mark.parametrize(
    "shapes",
    [[(4,)], [(4, 3), (4, 1)], [(7, 4, 3), (4, 3), (4, 3)]],
    ids=["another draw", "one more draw", "one more of a known shape, after one found by its number"],
)
def test_a_draw_that_the_check_did_not_see_is_unknown(shapes):
    plan = (BY_TIME, MASK) if len(shapes) == 3 else (MASK,)
    assert draws(plan, *shapes)


def test_a_loop_may_draw_more_often_than_before():
    assert not draws((MASK,), (4, 3), (4, 3), (4, 3))
