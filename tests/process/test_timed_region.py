"""`samestep.timed` returns equal seconds on ranks of a user-defined group and of a replicated script."""

from pathlib import Path
from textwrap import dedent

from samestep.ranks.world.current import entered
from samestep.ranks.world.timed_region import timed
from support.script_runner import run_script


def in_own_group(world):
    del world  # the script has none
    with timed("all of it") as region:
        pass
    return region.seconds


def test_ranks_of_a_user_defined_group_get_equal_seconds(processes):
    first, *others = processes.run(in_own_group, 2)

    assert first > 0
    assert others == [first]


def in_replicated_script(world, folder):
    with entered(world):
        return run_script(world, Path(folder) / "train.py", (), folder)


def test_ranks_of_a_replicated_script_get_equal_seconds(processes, tmp_path):
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
