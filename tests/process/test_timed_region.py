"""`samestep.timed` returns equal seconds on ranks of a user-defined group."""

from samestep.ranks.world.timed_region import timed


def in_own_group(world):
    del world  # the script has none
    with timed("all of it") as region:
        pass
    return region.seconds


def test_ranks_of_a_user_defined_group_get_equal_seconds(processes):
    first, *others = processes.run(in_own_group, 2)

    assert first > 0
    assert others == [first]
