"""Every command that runs workers, under real Open MPI and MPICH, on one host and on two; without mpi4py."""

import os
import sys

import pytest

from support.launches import MESSAGES, OUTPUT_OF_TWO, PLACE, RUN, placed, places
from support.mpi import KINDS, mpirun
from support.nodes import LOGIN
from support.tiers import long_param, mostly_long

FORWARD = ("PYTHONPATH",) if "PYTHONPATH" in os.environ else ()
TWO = ("node0", "node1")
CALLS_MPICH = """
import ctypes, samestep
with samestep.join(device="cpu") as world:
    mpi, rank = ctypes.CDLL("libmpich.so.12"), ctypes.c_int(-1)
    mpi.MPI_Init(None, None)
    mpi.MPI_Comm_rank(0x44000000, ctypes.byref(rank))  # MPI_COMM_WORLD
    print(f"rank {world.place.rank} is MPI's rank {rank.value}\\n", end="", flush=True)
    mpi.MPI_Finalize()
"""
FAILS = """
import samestep
with samestep.join(device="cpu") as world:
    if world.place.rank == 1:
        raise ValueError("no such column")
    world.sum(1)
    print("went on")
"""


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_on_one_host_are_the_workers(nodes, kind):
    done = nodes.run("node0", *mpirun(kind, nodes, ["node0"], per_host=3, forward=FORWARD), *RUN, *PLACE)

    assert done.code == 0, done.err
    told, points = places(done.out)
    assert told == placed("node0", "node0", "node0")
    ((address, port),) = (point.split(":") for point in points)
    assert address == "127.0.0.1"
    assert port.isdecimal()
    assert f"3 workers started by {kind}" in done.err


@pytest.mark.parametrize("here", [LOGIN, long_param("node0")])
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_on_two_hosts_have_one_rendezvous_address(nodes, kind, here):
    done = nodes.run(here, *mpirun(kind, nodes, TWO, per_host=2, forward=FORWARD), *RUN, *PLACE)

    assert done.code == 0, done.err
    told, points = places(done.out)
    assert told == placed("node0", "node0", "node1", "node1")
    ((address, _),) = (point.split(":") for point in points)
    assert address == "node0"


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_master_addr_and_master_port_are_used_if_they_are_set(nodes, kind):
    launch = mpirun(kind, nodes, TWO, per_host=1, forward=(*FORWARD, "MASTER_ADDR", "MASTER_PORT"))
    done = nodes.run(LOGIN, *launch, *RUN, *PLACE, MASTER_ADDR="10.77.0.1", MASTER_PORT="29511")

    assert done.code == 0, done.err
    assert places(done.out) == (placed(*TWO), {"10.77.0.1:29511"})


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_of_a_joined_script_on_two_hosts_send_messages(nodes, kind):
    launch = mpirun(kind, nodes, TWO, per_host=1, forward=FORWARD)
    done = nodes.run(LOGIN, *launch, sys.executable, MESSAGES)

    assert done.code == 0, done.err
    assert done.out.splitlines() == OUTPUT_OF_TWO
    assert f"samestep: 2 workers = 2 nodes x 1, {kind}, cpu, gloo over eth0, " in done.err


def test_a_script_that_calls_mpich_itself_uses_master_addr(nodes, tmp_path):
    script = tmp_path / "calls_mpi.py"
    script.write_text(CALLS_MPICH)
    launch = mpirun("mpich", nodes, TWO, per_host=1)
    done = nodes.run(LOGIN, *launch, sys.executable, script, MASTER_ADDR="node0", MASTER_PORT="29511")

    assert done.code == 0, done.err
    assert sorted(done.out.splitlines()) == ["rank 0 is MPI's rank 0", "rank 1 is MPI's rank 1"]


def test_all_ranks_under_mpich_end_if_one_fails(nodes, tmp_path):
    script = tmp_path / "fails.py"
    script.write_text(FAILS)
    done = nodes.run("node0", *mpirun("mpich", nodes, ["node0"], per_host=2), *RUN, script)

    assert done.code != 0
    assert "ValueError: no such column" in done.err
    assert done.out == ""


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_one_launcher_on_each_host_starts_its_share(nodes, kind):
    launch = mpirun(kind, nodes, TWO, per_host=1, forward=FORWARD)
    done = nodes.run(LOGIN, *launch, *RUN, "-n", 4, *PLACE)

    assert done.code == 0, done.err
    told, points = places(done.out)
    assert told == placed("node0", "node0", "node1", "node1")
    assert len(points) == 1


@pytest.mark.parametrize("kind", mostly_long(KINDS, ("openmpi",)))
def test_ranks_without_their_launchers_variables_are_refused(nodes, kind, tmp_path):
    script = tmp_path / "serial.py"
    script.write_text("print('a copy')")
    bare = ("env", "-i", "PATH=/usr/bin:/bin", *(f"{name}={os.environ[name]}" for name in FORWARD))
    launch = mpirun(kind, nodes, ["node0"], per_host=2)
    done = nodes.run("node0", *launch, *bare, *RUN, script)

    assert done.code == 2, done.err
    assert "started 2 processes like this one, but none of its variables" in done.err
    assert "a copy" not in done.out


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_mpirun_in_a_job_script_has_its_rendezvous_on_the_first_node(slurm, kind, tmp_path):
    mpi = "mpirun.openmpi --allow-run-as-root --bind-to none" if kind == "openmpi" else "mpirun.mpich"
    (out,) = slurm.batch(
        f"exec 2>&1; {mpi} {' '.join(RUN)} --no-python sh -c "
        "'echo rank $RANK of $WORLD_SIZE on $(hostname) at $MASTER_ADDR'",
        *("--nodes=2", "--ntasks-per-node=2"),
        folder=tmp_path,
    )

    ranks = sorted(line for line in out.splitlines() if line.startswith("rank "))
    first, last = (ranks[number].split()[5] for number in (0, -1))  # the nodes of an earlier job may be busy
    assert first < last, out
    assert ranks == [f"rank {r} of 4 on {(first, last)[r // 2]} at {first}" for r in range(4)], out
