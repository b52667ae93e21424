"""The draws of a slice are its part of the draws of the whole batch."""

from types import SimpleNamespace

import torch

from samestep.autopilot.split.random_draws import GlobalDraws


def test_normal_with_a_size_draws_for_the_whole_batch():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        whole = torch.normal(2.0, 0.5, size=(5, 3))
        torch.manual_seed(3)
        with GlobalDraws(SimpleNamespace(local=2, total=5, start=3)):
            own = torch.normal(2.0, 0.5, size=(2, 3))
    assert torch.equal(own, whole[3:])
