"""The draws of a slice are its part of the draws of the whole batch."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from samestep.autopilot.split import random_draws
from samestep.autopilot.split.random_draws import (
    BatchDraw,
    DrawPlan,
    DrawRecord,
    DrawRecorder,
    DrawType,
    GlobalDraws,
    InferredDraws,
    PlannedDraw,
)
from samestep.autopilot.split.sharded_autograd import memory_order


def test_normal_with_a_size_draws_for_the_whole_batch():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        whole = torch.normal(2.0, 0.5, size=(5, 3))
        torch.manual_seed(3)
        with GlobalDraws(SimpleNamespace(local=2, total=5, start=3)):
            own = torch.normal(2.0, 0.5, size=(2, 3))
    assert torch.equal(own, whole[3:])


def test_masks_match_this_torch():
    assert random_draws.matches_torch()


@given(
    st.integers(0, 300),
    st.floats(0, 1),
    st.integers(0, 2**31),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_masks_and_the_generator_after_them_equal_those_of_bernoulli(count, probability, seed, dtype):
    ours, theirs = (torch.Generator().manual_seed(seed) for _ in range(2))
    mask = random_draws.bernoulli_mask(random_draws.random_bits((count,), ours), probability)
    expected = torch.empty(count, dtype=dtype).bernoulli_(probability, generator=theirs)
    assert torch.equal(mask, expected.bool())
    assert torch.equal(ours.get_state(), theirs.get_state())


@pytest.mark.parametrize("other", ["one number less", "other bits"])
def test_another_implementation_is_detected(monkeypatch, other):
    random_bits = random_draws.random_bits
    if other == "one number less":
        monkeypatch.setattr(
            random_draws,
            "random_bits",
            lambda shape, generator: random_bits((*shape[:-1], shape[-1] - 1), generator),
        )
    else:
        monkeypatch.setattr(
            random_draws, "random_bits", lambda shape, generator: random_bits(shape, generator) >> 1
        )
    random_draws.matches_torch.cache_clear()
    try:
        assert not random_draws.matches_torch()
    finally:
        random_draws.matches_torch.cache_clear()


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


def attention_and_dropout(bias, samples):
    """Attend with a computed bias, which has another kernel with a graph than without one; then drop."""
    x = torch.ones(samples, 2, 3, 4)
    return F.dropout(F.scaled_dot_product_attention(x, x, x, attn_mask=2 * bias))


def test_attention_without_dropout_is_no_draw_with_or_without_a_graph():
    """Only this finds that stochastic depth behind a bias of attention, as in BEiT, keeps calls unsplit."""
    bias = torch.zeros(1, 2, 3, 3, requires_grad=True)
    with torch.random.fork_rng(), torch.no_grad(), DrawRecorder() as whole:
        attention_and_dropout(bias, 8)
    assert [record.shape for record in whole.shapes] == [(8, 2, 3, 4)]
    for grad in (True, False):
        mode = InferredDraws(SimpleNamespace(local=4, total=8, start=0), whole.shapes)
        with torch.random.fork_rng(), torch.set_grad_enabled(grad), mode:
            attention_and_dropout(bias, 4)
        assert (mode.unknown, mode.plan().draws[0].dim) == (set(), 0)


def fills_its_memory(tensor):
    return torch.empty_like(tensor, device="meta").stride() == tensor.stride()


@pytest.mark.parametrize("local", [1, 2, 6])
@pytest.mark.parametrize(
    ("computed", "dim"),
    [
        (lambda count: torch.empty(count, 5), 0),
        (lambda count: torch.empty(count, 4, 5)[:, -1], 0),
        (lambda count: torch.empty(count, 1, 5)[:, -1], 0),
        (lambda count: torch.empty(count, 5)[:, ::2], 0),
        (lambda count: torch.empty(count, 1, 5).expand(-1, 3, -1), 0),
        (lambda count: torch.empty(count, 5).t(), 1),
        (lambda count: torch.empty(4, count, 5), 1),
        (lambda count: torch.empty(4, 6, 5).narrow(1, 0, count), 1),
        (lambda count: torch.empty(4, count, 5)[-1], 0),
        (lambda count: torch.empty(4, count, 5)[..., 1:], 1),
        (lambda count: torch.empty(count, 3, 4, 4).to(memory_format=torch.channels_last), 0),
    ],
)
def test_a_draw_has_gaps_in_memory_where_the_whole_batch_has_some(computed, dim, local):
    """CUDA's dropout draws other numbers for a tensor with gaps."""
    whole = computed(6)
    draw = BatchDraw(tuple(whole.shape), dim, 0, local, order=tuple(memory_order(whole)))
    drawn = draw.empty_with_gaps(computed(local))
    assert drawn.shape == whole.shape
    assert fills_its_memory(drawn) == fills_its_memory(whole)
