"""The draws of a slice are its part of the draws of the whole batch."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from samestep.autopilot.split import random_draws
from samestep.autopilot.split.random_draws import GlobalDraws


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
