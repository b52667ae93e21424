"""Durations and memory that a device measures are those of rank 0 on all ranks of a serial script."""

import pytest
import torch

from samestep.autopilot.script.options import Options
from support.script_runner import run_script

SCRIPT = """
import torch

begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
for number in range(3):
    begin.record()
    end.record()
    print(begin.elapsed_time(end))
print(torch.cuda.mem_get_info())
print(torch.cuda.max_memory_allocated(), torch.accelerator.memory_allocated(), torch.cuda.memory_reserved())
"""


def run_with_own_memory(world, script):
    """Run a script on ranks that have allocated different amounts of memory."""
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (
            (torch.cuda, "max_memory_allocated"),
            (torch.cuda, "memory_reserved"),
            (torch.accelerator, "memory_allocated"),
        ):
            patch.setattr(owner, name, lambda: 1000 + world.place.rank, raising=False)
        return run_script(world, script, (), script.parent, 1, Options(device="cpu"))


def test_all_ranks_have_the_durations_and_memory_of_rank_0(processes, tmp_path):
    script = tmp_path / "figures.py"
    script.write_text(SCRIPT)
    (main, _, failed), (second, _, _) = processes.run(run_with_own_memory, 2, script)
    assert not failed
    assert main.splitlines()[-1] == "1000 1000 1000"
    assert second == main
