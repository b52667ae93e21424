"""The fingerprint of weights."""

import torch

from samestep.parallel.gradients.weight_checksum import weights_sha256


def test_the_digest_sees_every_bit_every_name_and_every_dtype():
    state = {"a": torch.tensor([1.0, 2.0]), "n": torch.tensor(3)}
    digest = weights_sha256(state)

    assert weights_sha256(dict(reversed(state.items()))) == digest
    assert weights_sha256({**state, "a": torch.tensor([1.0, 2.0 + 2**-22])}) != digest
    assert weights_sha256({**state, "n": torch.tensor(3, dtype=torch.int32)}) != digest
    assert weights_sha256({"b": state["a"], "n": state["n"]}) != digest
    assert weights_sha256({"a": torch.tensor([1.0], dtype=torch.bfloat16)})
