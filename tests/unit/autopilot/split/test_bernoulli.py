import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from samestep.autopilot.split import bernoulli


def test_masks_match_this_torch():
    assert bernoulli.matches_torch()


@given(
    st.integers(0, 300),
    st.floats(0, 1),
    st.integers(0, 2**31),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_masks_and_the_generator_after_them_equal_those_of_bernoulli(count, probability, seed, dtype):
    ours, theirs = (torch.Generator().manual_seed(seed) for _ in range(2))
    mask = bernoulli.bernoulli_mask(bernoulli.random_bits((count,), ours), probability)
    expected = torch.empty(count, dtype=dtype).bernoulli_(probability, generator=theirs)
    assert torch.equal(mask, expected.bool())
    assert torch.equal(ours.get_state(), theirs.get_state())


@pytest.mark.parametrize("other", ["one number less", "other bits"])
def test_another_implementation_is_detected(monkeypatch, other):
    random_bits = bernoulli.random_bits
    if other == "one number less":
        monkeypatch.setattr(
            bernoulli,
            "random_bits",
            lambda shape, generator: random_bits((*shape[:-1], shape[-1] - 1), generator),
        )
    else:
        monkeypatch.setattr(
            bernoulli, "random_bits", lambda shape, generator: random_bits(shape, generator) >> 1
        )
    bernoulli.matches_torch.cache_clear()
    try:
        assert not bernoulli.matches_torch()
    finally:
        bernoulli.matches_torch.cache_clear()
