"""Every command that runs workers has the right places and rendezvous under a real Slurm."""

import os
import sys

import pytest

from samestep.ranks.rendezvous.endpoint import PORTS
from support.launches import JOIN, PLACE, RUN, placed, places
from support.tiers import long_param

SERIAL = """
import socket, torch
assert socket.gethostname() == "node0"
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
BARE = ("env", "-i", "PATH=/usr/bin:/bin", f"PYTHONPATH={os.environ.get('PYTHONPATH', '')}")


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "joined.py"
    path.write_text(JOIN)
    return path


def error_of(done):
    """Return the error line of a refused command."""
    assert done.code == 2, (done.code, done.err)
    return "".join(sorted({line for line in done.err.splitlines() if "samestep: error:" in line}))


@pytest.mark.parametrize(
    ("flags", "hosts"),
    [
        (("--nodes=2", "--ntasks-per-node=2"), ("node0", "node0", "node1", "node1")),
        (("--nodes=2", "--ntasks=4"), ("node0", "node0", "node0", "node1")),
        long_param(("--ntasks=2",), ("node0", "node0")),
        long_param(("--nodes=4",), ("node0", "node1", "node2", "node3")),
    ],
    ids=["2x2", "3+1", "ntasks only", "4x1"],
)
def test_the_tasks_of_a_step_are_the_workers(slurm, flags, hosts):
    done = slurm.run("srun", *flags, *RUN, *PLACE)

    assert done.code == 0, done.err
    told, points = places(done.out)
    assert told == placed(*hosts)
    ((address, port),) = (point.split(":") for point in points)
    assert address == ("node0" if "node1" in hosts else "127.0.0.1")
    assert int(port) not in PORTS  # those are where ranks ask; what they are told was free
    assert f"{len(hosts)} workers started by slurm" in done.err


def test_a_joined_script_under_srun_is_one_run(slurm, script):
    done = slurm.run("srun", "--nodes=2", "--ntasks-per-node=2", sys.executable, script)

    assert done.code == 0, done.err
    assert sorted(done.out.splitlines()) == [
        f"rank {r} of 4 (local rank {r % 2} of 2 on node {r // 2} of 2) 10" for r in range(4)
    ]


def test_one_launcher_on_each_node_starts_its_share(slurm):
    done = slurm.run("srun", "--nodes=2", "--ntasks-per-node=1", *RUN, "-n", 4, *PLACE)

    assert done.code == 0, done.err
    told, points = places(done.out)
    assert told == placed("node0", "node0", "node1", "node1")
    assert len(points) == 1
    assert done.err.count("4 workers = 2 nodes x 2") == 1


def test_a_number_of_workers_other_than_that_of_tasks_is_refused(slurm):
    done = slurm.run("srun", "--nodes=2", "--ntasks-per-node=2", *RUN, "-n", 3, *PLACE)
    assert "3 workers were asked for, but slurm started 4 task(s) on 2 node(s)" in error_of(done)


def test_salloc_from_a_login_node_runs_the_workers_in_the_allocation(slurm):
    two = "--nodes=2", "--nodelist=node0,node1"  # others, if an earlier job has not left these
    done = slurm.run("salloc", *two, "--ntasks-per-node=2", *RUN, "-n", 4, *PLACE)

    assert done.code == 0, done.err
    assert places(done.out)[0] == placed("node0", "node0", "node1", "node1")
    assert "this shell holds Slurm allocation" in done.err


def test_a_number_of_workers_other_than_that_of_tasks_is_refused_under_salloc(slurm):
    done = slurm.run("salloc", "--nodes=2", "--ntasks-per-node=2", *RUN, "-n", 3, *PLACE)
    assert "3 workers were asked for, but allocation" in error_of(done)


@pytest.mark.long
def test_verify_from_a_login_node_runs_as_one_task_of_the_allocation(slurm, script):
    script.write_text(SERIAL)
    verify = (sys.executable, "-m", "samestep", "verify", script, "-n", 2, "--steps", 2)
    done = slurm.run("salloc", "--nodes=2", "--ntasks-per-node=2", *verify)

    assert done.code == 0, done.err
    assert "this shell holds Slurm allocation" in done.err
    assert done.out.splitlines()[-1].startswith("same: ")


def test_verify_as_several_tasks_is_refused(slurm, script):
    verify = (sys.executable, "-m", "samestep", "verify", script)
    done = slurm.run("srun", "--ntasks=2", *verify)

    assert done.code == 2
    assert all(one in error_of(done) for one in ("verify", "slurm", "2 tasks", "--ntasks=1"))


@pytest.mark.long
def test_a_job_script_without_srun_is_one_process(slurm, script, tmp_path):
    (out,) = slurm.batch(
        f"exec 2>&1; {' '.join(RUN)} --no-python printenv WORLD_SIZE; {sys.executable} {script}",
        *("--nodes=2", "--ntasks-per-node=2"),
        folder=tmp_path,
    )

    assert "\n1\n" in out
    assert "rank 0 of 1 (local rank 0 of 1 on node 0 of 1) 1\n" in out
    assert out.count("has room for 4 tasks, but this is not one of them") == 2


@pytest.mark.long
def test_tasks_of_an_array_have_separate_rendezvous(slurm, tmp_path):
    outs = slurm.batch(
        f"srun {' '.join(RUN)} --no-python sh -c 'echo $SLURM_ARRAY_TASK_ID $RANK $WORLD_SIZE $MASTER_PORT'",
        *("--array=1-2", "--ntasks=2"),
        folder=tmp_path,
    )

    told = [sorted(line.split() for line in out.splitlines() if line[0].isdecimal()) for out in outs]
    assert sorted([task, rank, size] for lines in told for task, rank, size, _ in lines) == [
        [task, rank, "2"] for task in "12" for rank in "01"
    ]
    assert all(len({port for *_, port in lines}) == 1 for lines in told)


@pytest.mark.long
def test_torchrun_in_a_step_determines_the_ranks(slurm):
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2")
    meet = ("--rdzv-backend=c10d", "--rdzv-endpoint=node0:29400", "--rdzv-id=9")
    done = slurm.run(
        *("srun", "--nodes=2", "--ntasks-per-node=1"),
        *(*torchrun, *meet, "-m", "samestep", "run", *PLACE),
    )

    assert done.code == 0, done.err
    told, points = places(done.out)
    assert [line.partition(",")[0] for line in told] == [f"rank {rank} of 4" for rank in range(4)]
    assert len(points) == 1
    assert "4 workers started by torchrun" in done.err


def test_an_unresolvable_master_is_an_error(slurm):
    done = slurm.run("srun", "--nodes=2", *RUN, *PLACE, MASTER_ADDR="nowhere.invalid", MASTER_PORT="1234")
    assert "nowhere.invalid, the host of rank 0, cannot be resolved on node" in error_of(done)


@pytest.mark.parametrize(
    ("through", "words"),
    [
        (("env", "-u", "SLURM_PROCID"), "SLURM_PROCID is not set, but"),
        (("env", "-u", "SLURM_STEP_ID", "-u", "SLURM_STEPID"), "SLURM_STEP_ID is not set, but"),
        (BARE, "started 2 processes like this one, but none of its variables"),
    ],
    ids=["no rank", "no step", "nothing"],
)
@pytest.mark.parametrize("what", [long_param("command"), "join"])
def test_tasks_without_variables_of_their_place_are_refused(slurm, script, through, words, what):
    program = (*RUN, *PLACE) if what == "command" else (sys.executable, script)
    done = slurm.run("srun", "--ntasks=2", *through, *program)

    assert done.code in (1, 2), done.out
    assert words in done.err
    assert "rank 0 of 1" not in done.out
