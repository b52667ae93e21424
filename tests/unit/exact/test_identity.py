"""What decides the bits is known, and so are the bits themselves."""

import pytest
import torch

from samestep.base.errors import CheckpointError
from samestep.base.machine import machine
from samestep.exact import probe
from samestep.exact.identity import check_go_on, identity

CPU = torch.device("cpu")


def test_the_processor_and_samples_of_its_bits_are_part_of_the_identity():
    known = identity(CPU)

    assert known["processor"] == machine().processor
    for kind in ("a convolution", "a matrix product", "a batch norm"):
        assert known[f"the bits of {kind} in fp32"] != known[f"the bits of {kind} in bf16"]


def test_samples_have_the_same_bits_each_time_and_draw_nothing():
    first = probe.probe(CPU)
    probe._probed.cache_clear()
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert probe.probe(CPU) == first
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("name", ["capability", "device", "processor", "the bits of a batch norm in bf16"])
def test_what_differs_is_named(name):
    with pytest.raises(CheckpointError, match=f"began with {name} other and would go on with {name} "):
        check_go_on({**identity(CPU), name: "other"}, CPU)


def test_other_bits_of_the_same_processor_are_told_to_come_from_its_libraries():
    with pytest.raises(CheckpointError, match="setting of its libraries differs, such as ONEDNN_MAX_CPU_ISA"):
        check_go_on({**identity(CPU), "the bits of a convolution in fp32": "other"}, CPU)


def test_what_an_earlier_version_did_not_store_is_not_compared():
    stored = ("threads", "capability", "torch", "device")
    known = identity(CPU)

    left = check_go_on({name: known[name] for name in stored}, CPU)

    assert left == [name for name in known if name not in stored]
    assert check_go_on(known, CPU) == []
