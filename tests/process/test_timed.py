"""A region timed by hand, on real ranks: with a group that the script set up, and in a replicated script."""

from pathlib import Path
from textwrap import dedent

from samestep.ranks.world.current import entered
from samestep.ranks.world.timed_region import timed
from support.hosted import run_script


def in_own_group(world):
    del world  # the script knows of none
    with timed("all of it") as region:
        pass
    return region.seconds


def test_ranks_of_a_group_that_a_script_set_up_are_told_the_same(processes):
    first, *others = processes.run(in_own_group, 2)

    assert first > 0
    assert others == [first]


def in_replicated_script(world, folder):
    with entered(world):
        return run_script(world, Path(folder) / "train.py", (), folder)


def test_a_replicated_script_is_timed_as_one(processes, tmp_path):
    script = """\
        import torch
        import samestep

        model = torch.nn.Linear(2, 1)
        with samestep.timed() as region:
            model(torch.ones(4, 2)).sum().backward()
        print(region.seconds)
        """
    (tmp_path / "train.py").write_text(dedent(script))
    (first, _, failure), (second, _, other) = processes.run(in_replicated_script, 2, str(tmp_path))

    assert (failure, other) == ("", "")
    assert first == second
    assert float(first) > 0
