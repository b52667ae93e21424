"""What a thread waits in, told from its frames."""

from types import SimpleNamespace

from samestep.watch.where import blocked_in, main_frames
from samestep.world.process_group import ProcessGroupWorld


def test_a_message_of_a_world_is_told_with_its_rank():
    seen = []
    message = SimpleNamespace(wait=lambda: seen.append(blocked_in(main_frames())))
    world = SimpleNamespace(_blocked=None)

    ProcessGroupWorld.await_message(world, message, op="exchange", peer=3)

    assert [(one.op, one.ranks) for one in seen] == [("exchange", (3,))]
