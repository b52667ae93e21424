"""The checksum of weights depends on all bits, names and types."""

import torch

from samestep.parallel.gradients.weight_checksum import weights_sha256


def test_the_checksum_depends_on_every_bit_name_and_dtype_but_not_on_the_order():
    state = {"a": torch.tensor([1.0, 2.0]), "n": torch.tensor(3)}
    digest = weights_sha256(state)

    assert weights_sha256(dict(reversed(state.items()))) == digest
    assert weights_sha256({**state, "a": torch.tensor([1.0, 2.0 + 2**-22])}) != digest
    assert weights_sha256({**state, "n": torch.tensor(3, dtype=torch.int32)}) != digest
    assert weights_sha256({"b": state["a"], "n": state["n"]}) != digest
    assert weights_sha256({"a": torch.tensor([1.0], dtype=torch.bfloat16)})
