"""The identity has the properties on which the bits of operations depend, and digests of such bits."""

import pytest
import torch

from samestep.base.errors import CheckpointError
from samestep.base.machine.description import machine
from samestep.parallel.exact.identity import _probed, check_resumable, identity, probe

CPU = torch.device("cpu")


def test_the_cpu_model_and_digests_of_operations_are_part_of_the_identity():
    known = identity(CPU)

    assert known["processor"] == machine().processor
    for kind in ("a convolution", "a matrix product", "a batch norm"):
        assert known[f"the bits of {kind} in fp32"] != known[f"the bits of {kind} in bf16"]


def test_the_probe_has_the_same_bits_each_time_and_draws_no_random_numbers():
    first = probe(CPU)
    _probed.cache_clear()
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert probe(CPU) == first
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("name", ["capability", "device", "processor", "the bits of a batch norm in bf16"])
def test_a_different_property_is_named(name):
    with pytest.raises(CheckpointError, match=f"{name} was other "):
        check_resumable({**identity(CPU), name: "other"}, CPU)


def test_the_error_about_other_bits_on_the_same_cpu_names_the_setting_of_onednn():
    with pytest.raises(CheckpointError, match="ONEDNN_MAX_CPU_ISA"):
        check_resumable({**identity(CPU), "the bits of a convolution in fp32": "other"}, CPU)


def test_properties_that_an_older_version_did_not_store_are_not_compared():
    stored = ("threads", "capability", "torch", "device")
    known = identity(CPU)

    left = check_resumable({name: known[name] for name in stored}, CPU)

    assert left == [name for name in known if name not in stored]
    assert check_resumable(known, CPU) == []
