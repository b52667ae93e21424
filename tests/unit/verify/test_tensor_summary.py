"""Sketches estimate the distance of tensors, and keys identify equal samples."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from samestep.verify.tensor_summary import BUCKETS, norm, row_keys, row_sums, sketch


@given(st.integers(1, 500), st.integers(0, 2**31))
def test_a_sketch_is_linear(count, seed):
    generator = torch.Generator().manual_seed(seed)
    one, other = torch.randn(2, count, generator=generator, dtype=torch.float64)
    difference = torch.tensor(sketch([one])) - torch.tensor(sketch([other]))
    assert torch.allclose(difference, torch.tensor(sketch([one - other])), atol=1e-5)


def test_the_norm_of_a_sketch_is_about_that_of_its_tensors():
    tensors = [torch.randn(300, 40), torch.randn(40), torch.randn(7, 3, 3)]
    found = torch.tensor(sketch(tensors)).norm()
    assert len(sketch(tensors)) == 3 * BUCKETS
    assert float(found) == pytest.approx(norm(tensors), rel=0.5)


def test_none_has_zeros_and_half_precision_is_summed_in_double():
    assert sketch([None, torch.empty(0)]) == [0.0] * 2 * BUCKETS
    many = torch.full((100_000,), 0.1, dtype=torch.float16)
    assert norm([many]) == pytest.approx(float(many[0]) * 100_000**0.5)


def test_equal_samples_have_equal_keys_at_any_position():
    data = torch.randn(50, 3, 4)
    order = torch.randperm(50)
    whole, shuffled = row_keys(data), row_keys(data[order])
    assert torch.allclose(torch.tensor(shuffled), torch.tensor(whole)[order], rtol=1e-12)
    assert len({round(key, 9) for key in whole}) == 50


def test_sketching_does_not_change_the_scripts_random_state():
    before = torch.get_rng_state()
    sketch([torch.ones(1234)])
    row_keys(torch.ones(4, 567))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.filterwarnings("ignore:.*nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_sample_of_a_nested_tensor_has_its_key_beside_any_others(layout):
    parts = [torch.randn(length, 3, generator=torch.Generator().manual_seed(length)) for length in (2, 5, 0)]
    together = torch.nested.nested_tensor(parts, layout=layout)
    alone = torch.nested.nested_tensor(parts[1:2], layout=layout)
    assert row_keys(alone) == row_keys(together)[1:2] == row_keys(parts[1][None])
    assert row_sums(together) == pytest.approx([float(part.sum()) for part in parts], abs=1e-5)
    assert len(set(row_keys(together))) == 3


@pytest.mark.filterwarnings("ignore:.*quantized")
def test_quantized_values_count_and_a_tensor_without_values_has_zeros():
    quantized = torch.quantize_per_tensor(torch.arange(40.0), 0.5, 0, torch.qint8)
    assert sketch([quantized]) == sketch([quantized.dequantize()])
    lazy = torch.nn.LazyBatchNorm1d()
    without = [*lazy.parameters(), lazy.running_mean, torch.empty(4, device="meta")]
    assert sketch(without) == [0.0] * BUCKETS * 4
    assert row_keys(torch.empty(4, 2, device="meta")) == []
