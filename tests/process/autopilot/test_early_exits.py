"""A rank that exits with a code waits until rank 0 has flushed its files, with a timeout."""

import time
from unittest.mock import patch

from samestep.autopilot.replicated_script import _await_main_flush
from torch.distributed.distributed_c10d import _get_default_store

from samestep.autopilot import replicated_script


def leave(world, folder, late):
    """Exit on each rank; return whether rank 0 had written."""
    written, left = folder / "written", folder / "left"
    if world.place.is_main:
        if late:
            while not left.exists():
                time.sleep(0.001)
        written.touch()
    with patch.object(replicated_script, "_PATIENCE_S", 0.05 if late else 60.0):
        _await_main_flush(world, waits=not world.place.is_main)
    has_written = written.exists()
    left.touch()
    world.barrier()
    if world.place.is_main:
        _get_default_store().delete_key("samestep/written")
    return has_written


def exit_while_main_waits(world):
    """Exit while rank 0 waits in a collective; return the seconds that this takes."""
    began = time.monotonic()
    with patch.object(replicated_script, "is_waiting", lambda rank: rank == 0):
        if not world.place.is_main:
            _await_main_flush(world, waits=True)
    took = time.monotonic() - began
    world.barrier()
    return took


def test_a_rank_that_exits_does_not_wait_for_rank_0_in_a_collective(processes):
    assert max(processes.run(exit_while_main_waits, 2)) < replicated_script._PATIENCE_S / 2


def test_a_rank_exits_after_rank_0_has_written(processes, tmp_path):
    assert processes.run(leave, 2, tmp_path, False) == [True, True]


def test_a_rank_exits_after_a_timeout_if_rank_0_does_not_write(processes, tmp_path):
    assert processes.run(leave, 2, tmp_path, True) == [True, False]
