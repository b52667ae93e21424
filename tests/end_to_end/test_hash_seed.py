"""Sets have one order on all ranks of a serial script, under every launcher."""

import re
import socket
import subprocess
import sys
from textwrap import dedent

import pytest

from support import commands
from support.commands import environment, finish
from support.tiers import long_param

SCRIPT = dedent(
    """\
    import os, sys
    from multiprocessing import get_context

    def order(_=0):
        return " ".join(set(map(str, range(100))))

    if __name__ == "__main__":
        import torch  # not in the process of the pool

        torch.nn.Linear(1, 1)(torch.ones(4, 1)).sum().backward()
        with get_context("spawn").Pool(1) as pool:
            print(order(), *pool.map(order, [0]), os.getpid(), sys.stdin.read(), sep="\\n")
    """
)


def ranks_of(script, seeds):
    """Start one process for each rank, as another launcher does; return them and how they ended."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    started = []
    for rank, seed in enumerate(seeds):
        variables = environment(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE="2",
            LOCAL_WORLD_SIZE="2",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            PYTHONHASHSEED=seed,
        )
        given = script.with_name(f"given{rank}")
        given.write_text(f"line {rank}")
        with given.open() as stdin:
            process = subprocess.Popen(
                [sys.executable, "-m", "samestep", "run", "--all-output", script],
                env=variables,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        started.append(process)
    return started, [finish(process) for process in started]


@pytest.mark.parametrize("seed", ["", long_param("5")])
def test_processes_of_another_launcher_have_one_order(tmp_path, seed):
    script = tmp_path / "prog.py"
    script.write_text(SCRIPT)
    started, ended = ranks_of(script, (seed, seed))

    assert [one.code for one in ended] == [0, 0], ended[0].err + ended[1].err
    lines = [one.out.splitlines() for one in ended]
    assert lines[0][:2] == lines[1][:2]
    assert [(int(pid), read) for _, _, pid, read in lines] == [
        (process.pid, f"line {rank}") for rank, process in enumerate(started)
    ]


@pytest.mark.parametrize("seeds", [("1", "2"), long_param(("random", "random"))])
def test_different_seeds_of_the_user_are_refused_with_the_variable_to_set(tmp_path, seeds):
    script = tmp_path / "prog.py"
    script.write_text(SCRIPT)
    _, ended = ranks_of(script, seeds)

    assert [one.code for one in ended] == [2, 2]
    for one in ended:
        assert "PYTHONHASHSEED" in one.err
        values = re.findall(r"is (-?\d+) on rank 0 and (-?\d+) on rank 1", one.err)
        assert values
        assert values[0][0] != values[0][1]
        assert one.out == ""


def test_a_program_on_one_node_keeps_the_seed_that_python_chose(tmp_path):
    script = tmp_path / "prog.py"
    script.write_text("import sys; print(sys.flags.hash_randomization)")

    assert commands.samestep("run", "-n", 1, script, PYTHONHASHSEED="").out == "1\n"
