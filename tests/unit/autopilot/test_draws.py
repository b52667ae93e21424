"""What a slice draws is its part of what the whole batch draws."""

from types import SimpleNamespace

import torch

from samestep.autopilot.draws import GlobalDraws


def test_normal_numbers_of_a_size_are_those_of_the_whole_batch():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        whole = torch.normal(2.0, 0.5, size=(5, 3))
        torch.manual_seed(3)
        with GlobalDraws(SimpleNamespace(local=2, total=5, start=3)):
            own = torch.normal(2.0, 0.5, size=(2, 3))
    assert torch.equal(own, whole[3:])
