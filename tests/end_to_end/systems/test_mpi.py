"""Every command that runs workers, under real Open MPI and MPICH, on one host and on two; without mpi4py."""

import os
import sys

import pytest

from support.launches import JOIN, RUN, TELL, placed, places
from support.mpi import KINDS, mpirun
from support.nodes import LOGIN

FORWARD = ("PYTHONPATH",) if "PYTHONPATH" in os.environ else ()
TWO = ("node0", "node1")


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_on_one_host_are_the_workers(nodes, kind):
    done = nodes.run("node0", *mpirun(kind, nodes, ["node0"], per_host=3, forward=FORWARD), *RUN, *TELL)

    assert done.code == 0, done.err
    told, points = places(done.out)
    assert told == placed("node0", "node0", "node0")
    ((address, port),) = (point.split(":") for point in points)
    assert address == "127.0.0.1"
    assert port.isdecimal()
    assert f"3 workers started by {kind}" in done.err


@pytest.mark.parametrize("here", [LOGIN, "node0"])
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_on_two_hosts_find_each_other(nodes, kind, here):
    done = nodes.run(here, *mpirun(kind, nodes, TWO, per_host=2, forward=FORWARD), *RUN, *TELL)

    assert done.code == 0, done.err
    told, points = places(done.out)
    assert told == placed("node0", "node0", "node1", "node1")
    ((address, _),) = (point.split(":") for point in points)
    assert address == "node0"


@pytest.mark.parametrize("kind", KINDS)
def test_an_address_that_is_given_counts(nodes, kind):
    launch = mpirun(kind, nodes, TWO, per_host=1, forward=(*FORWARD, "MASTER_ADDR", "MASTER_PORT"))
    done = nodes.run(LOGIN, *launch, *RUN, *TELL, MASTER_ADDR="10.77.0.1", MASTER_PORT="29511")

    assert done.code == 0, done.err
    assert places(done.out) == (placed(*TWO), {"10.77.0.1:29511"})


@pytest.mark.parametrize("kind", KINDS)
def test_a_joined_script_on_two_hosts_is_one_run(nodes, kind, tmp_path):
    script = tmp_path / "joined.py"
    script.write_text(JOIN)
    launch = mpirun(kind, nodes, TWO, per_host=1, forward=FORWARD)
    done = nodes.run(LOGIN, *launch, sys.executable, script)

    assert done.code == 0, done.err
    assert sorted(done.out.splitlines()) == [
        f"rank {r} of 2 (local rank 0 of 1 on node {r} of 2) 3" for r in range(2)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_one_launcher_on_each_host_starts_its_share(nodes, kind):
    launch = mpirun(kind, nodes, TWO, per_host=1, forward=FORWARD)
    done = nodes.run(LOGIN, *launch, *RUN, "-n", 4, *TELL)

    assert done.code == 0, done.err
    told, points = places(done.out)
    assert told == placed("node0", "node0", "node1", "node1")
    assert len(points) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_whose_variables_are_lost_are_refused(nodes, kind, tmp_path):
    script = tmp_path / "serial.py"
    script.write_text("print('a copy')")
    bare = ("env", "-i", "PATH=/usr/bin:/bin", *(f"{name}={os.environ[name]}" for name in FORWARD))
    launch = mpirun(kind, nodes, ["node0"], per_host=2)
    done = nodes.run("node0", *launch, *bare, *RUN, script)

    assert done.code == 2, done.err
    assert "started 2 processes like this one, but none of its variables" in done.err
    assert "a copy" not in done.out


@pytest.mark.parametrize("kind", KINDS)
def test_mpirun_in_a_job_script_meets_on_the_first_node(slurm, kind, tmp_path):
    mpi = "mpirun.openmpi --allow-run-as-root --bind-to none" if kind == "openmpi" else "mpirun.mpich"
    (out,) = slurm.batch(
        f"exec 2>&1; {mpi} {' '.join(RUN)} --no-python sh -c "
        "'echo rank $RANK of $WORLD_SIZE on $(hostname) at $MASTER_ADDR'",
        *("--nodes=2", "--ntasks-per-node=2"),
        folder=tmp_path,
    )

    ranks = sorted(line for line in out.splitlines() if line.startswith("rank "))
    assert ranks == [f"rank {r} of 4 on node{r // 2} at node0" for r in range(4)], out
