"""The ranks are hidden inside the block only, whatever the script has replaced."""

import pytest
import torch.distributed as dist

from samestep.autopilot.replicated_script import single_process_view


@pytest.mark.filterwarnings("ignore:.*has replaced torch.distributed.is_initialized:RuntimeWarning")
def test_a_replacement_by_the_script_does_not_hide_the_ranks_after_the_block(monkeypatch):
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    with single_process_view(None):
        seen = dist.is_initialized
        dist.is_initialized = lambda: seen()
        assert not dist.is_initialized()

    assert dist.is_initialized()
