import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from samestep.autopilot import coins


def test_this_torch_tosses_the_same_coins():
    assert coins.are_torchs()


@given(
    st.integers(0, 300),
    st.floats(0, 1),
    st.integers(0, 2**31),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_coins_and_the_state_after_them_are_those_of_bernoulli(count, probability, seed, dtype):
    ours, theirs = (torch.Generator().manual_seed(seed) for _ in range(2))
    tossed = coins.heads(coins.bits((count,), ours), probability)
    expected = torch.empty(count, dtype=dtype).bernoulli_(probability, generator=theirs)
    assert torch.equal(tossed, expected.bool())
    assert torch.equal(ours.get_state(), theirs.get_state())


@pytest.mark.parametrize("other", ["one number less", "other bits"])
def test_another_way_of_tossing_is_noticed(monkeypatch, other):
    bits = coins.bits
    if other == "one number less":
        monkeypatch.setattr(
            coins, "bits", lambda shape, generator: bits((*shape[:-1], shape[-1] - 1), generator)
        )
    else:
        monkeypatch.setattr(coins, "bits", lambda shape, generator: bits(shape, generator) >> 1)
    coins.are_torchs.cache_clear()
    try:
        assert not coins.are_torchs()
    finally:
        coins.are_torchs.cache_clear()
