"""Scripts that spawn their workers, started once on each of two nodes."""

import os
import sys
from pathlib import Path

import pytest

from support.commands import finish
from support.mpi import KINDS, mpirun
from support.tiers import long_param, mostly_long

SCRIPT = Path(__file__).parents[2] / "gallery_spawn" / "spawns_on_nodes.py"
RUN = (sys.executable, "-m", "samestep", "run")
FORWARD = ("PYTHONPATH",) if "PYTHONPATH" in os.environ else ()
OWN_FLAGS = ("--gpus", "{local}", "--nodes", "{nodes}", "--nr", "{node_rank}")
BACKENDS = {
    "static": lambda rank: ("--node-rank", rank, "--master-addr", "node0", "--master-port", 29500),
    "c10d": lambda rank: (
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", "node0:29500"),
        *("--rdzv-conf", f"is_host={int(rank == 0)}"),
    ),
}
TRAINED = {f"rank {rank} of 4 epoch {epoch}" for rank in range(4) for epoch in range(2)}


def on_two(nodes, *arguments, backend="static", flags=OWN_FLAGS):
    """Return how two launchers ended."""
    launchers = [
        nodes.start(
            f"node{rank}",
            *(*RUN, "-n", 4, "--nnodes", 2, "--device", "cpu", *BACKENDS[backend](rank)),
            *(SCRIPT, *flags, *arguments),
        )
        for rank in range(2)
    ]
    return [finish(one) for one in launchers]


def trained(*outs):
    """Return ranks and epochs, and the losses of each epoch."""
    lines = [line.rsplit(" ", 1) for out in outs for line in out.splitlines() if line.startswith("rank")]
    losses = {(what.split()[-1], loss) for what, loss in lines}
    return {what for what, _ in lines}, len(losses)


@pytest.mark.parametrize("backend", mostly_long(BACKENDS, ("static",)))
def test_the_workers_of_all_nodes_are_one_group(nodes, backend):
    init = () if backend == "static" else ("--init", "tcp://10.57.23.164:8888")
    one, other = on_two(nodes, *init, backend=backend)

    assert (one.code, other.code) == (0, 0), one.err + other.err
    assert trained(one.out, other.out) == (TRAINED, 2)
    ended = [line for out in (one.out, other.out) for line in out.splitlines() if line.startswith("node")]
    assert sorted(ended) == ["node 0 has ended", "node 1 has ended"]


@pytest.mark.long
def test_the_steps_of_all_workers_are_clocked(nodes, tmp_path):
    launchers = [
        nodes.start(
            f"node{rank}",
            *(*RUN, "-n", 2, "--nnodes", 2, "--device", "cpu", *BACKENDS["static"](rank)),
            *("--clock", tmp_path / "clock", "--clock-steps", 3, "--clock-warm-up", 1, SCRIPT, *OWN_FLAGS),
        )
        for rank in range(2)
    ]
    ends = [finish(one) for one in launchers]

    assert [one.code for one in ends] == [0, 0], ends
    assert [len(path.read_text().splitlines()) for path in (tmp_path / "clock").iterdir()] == [5, 5]
    assert not any("has ended" in one.out for one in ends)


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        long_param(("--gpus", "{local}"), "2 ranks as rank"),
        (("--gpus", "{local}", "--nodes", "{nodes}"), "4 ranks as rank"),
        (("--gpus", "{n}", "--nodes", "{nodes}", "--nr", "{node_rank}"), "spawns 4 workers on this node"),
    ],
)
def test_a_script_without_flags_for_nodes_and_workers_is_refused_before_it_trains(nodes, flags, found):
    one, other = on_two(nodes, flags=flags)

    assert (one.code, other.code) == (2, 2), one.err + other.err
    assert found in one.err + other.err
    assert "epoch" not in one.out + other.out


def test_a_worker_that_fails_ends_the_run_on_all_nodes_and_is_named(nodes):
    one, other = on_two(nodes, "--fail", 3)

    assert (one.code, other.code) == (1, 1)
    assert "rank 3 of 4 (local rank 1" in one.err
    assert "RuntimeError: asked to fail" in other.err
    assert "has ended" not in one.out + other.out


def test_one_task_of_slurm_on_each_node_starts_the_script(slurm):
    srun = ("srun", "--nodes=2", "--ntasks-per-node=1")
    done = slurm.run(*srun, *RUN, "-n", 4, "--device", "cpu", SCRIPT, *OWN_FLAGS)

    assert done.code == 0, done.err
    assert trained(done.out) == (TRAINED, 2)


@pytest.mark.long
def test_one_worker_is_spawned_on_each_node(slurm):
    srun = ("srun", "--nodes=2", "--ntasks-per-node=1")
    done = slurm.run(*srun, *RUN, "-n", 2, "--device", "cpu", SCRIPT, *OWN_FLAGS)

    assert done.code == 0, done.err
    assert trained(done.out)[0] == {f"rank {rank} of 2 epoch {epoch}" for rank in (0, 1) for epoch in (0, 1)}


@pytest.mark.long
def test_a_script_is_refused_without_a_number_of_workers(slurm):
    done = slurm.run("srun", "--nodes=2", "--ntasks-per-node=1", *RUN, "--device", "cpu", SCRIPT, *OWN_FLAGS)

    assert done.code == 2
    assert "-n" in done.err
    assert not done.out


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_one_rank_of_mpi_on_each_node_starts_the_script(nodes, kind):
    own = mpirun(kind, nodes, ["node0", "node1"], per_host=1, forward=FORWARD)
    done = nodes.run("node0", *own, *RUN, "-n", 4, "--device", "cpu", SCRIPT, *OWN_FLAGS)

    assert done.code == 0, done.err
    assert trained(done.out) == (TRAINED, 2)


SPAWN = """
import sys, samestep

def work(world, start):
    if len(sys.argv) > 2 and world.place.rank == 3:
        raise ValueError("asked to fail")
    return (world.place.rank, world.place.local_rank, world.place.node, world.sum(start + world.place.rank))

if __name__ == "__main__":
    print(f"{samestep.spawn(work, int(sys.argv[1]), 10)}\\n", end="", flush=True)
"""
RESULTS = [
    "[(0, 0, 0, 46.0), (1, 1, 0, 46.0)]",
    "[(2, 0, 1, 46.0), (3, 1, 1, 46.0)]",
]


def test_the_workers_of_samesteps_spawn_are_one_world(slurm, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SPAWN)
    done = slurm.run("srun", "--nodes=2", "--ntasks-per-node=1", sys.executable, script, 2)

    assert done.code == 0, done.err
    assert sorted(done.out.splitlines()) == RESULTS


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_the_workers_of_samesteps_spawn_are_one_world_under_mpi(nodes, tmp_path, kind):
    script = tmp_path / "train.py"
    script.write_text(SPAWN)
    own = mpirun(kind, nodes, ["node0", "node1"], per_host=1, forward=FORWARD)
    done = nodes.run("node0", *own, sys.executable, script, 2)

    assert done.code == 0, done.err
    assert sorted(done.out.splitlines()) == RESULTS


@pytest.mark.long
def test_a_failure_in_samesteps_spawn_names_the_rank(slurm, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SPAWN)
    done = slurm.run("srun", "--nodes=2", "--ntasks-per-node=1", sys.executable, script, 2, "fail")

    assert done.code == 1
    assert "rank 3 of 4" in done.err
    assert not done.out


def test_samesteps_spawn_is_refused_in_several_tasks_on_a_node(slurm, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SPAWN)
    done = slurm.run("srun", "--nodes=2", "--ntasks-per-node=2", sys.executable, script, 2)

    assert "4 tasks on 2 nodes" in done.err
    assert not done.out
