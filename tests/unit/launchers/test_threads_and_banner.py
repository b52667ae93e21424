"""The number of threads is the user's, else follows from the CPUs; the banner prints it."""

import pytest

from samestep.base.errors import UsageError
from samestep.base.machine.description import CpuShare
from samestep.base.place import Place
from samestep.launchers.detect import Detected, detect
from samestep.launchers.processors import (
    Threads,
    guess_sharing,
    passed_threads,
    thread_variables,
    threads_per_rank,
)
from samestep.ranks.world.banner import describe, describe_rest


def cpus(count, quota=None, machine=None):
    return CpuShare(
        allowed=tuple(range(count)),
        cores=count,
        quota=quota,
        quota_source="cpu.max",
        machine=machine or count,
    )


@pytest.mark.parametrize(
    ("cpu", "local_size", "sharing", "count"),
    [
        (cpus(8), 1, 1, 8),
        (cpus(8), 2, 2, 4),
        (cpus(8), 3, 3, 2),
        (cpus(2), 4, 4, 1),
        (cpus(8, machine=32), 4, 1, 8),  # bound by the launcher: nothing to divide
        (cpus(64, quota=6.0), 2, 2, 3),
        (cpus(64, quota=0.5), 1, 1, 1),
        (cpus(4, quota=16.0), 2, 2, 2),
    ],
)
def test_ranks_divide_the_cpus_that_they_share(cpu, local_size, sharing, count):
    assert threads_per_rank({}, cpu, local_size=local_size, sharing=sharing).count == count


def test_the_number_of_threads_of_the_user_is_kept():
    threads = threads_per_rank({"OMP_NUM_THREADS": "3,1"}, cpus(8), local_size=2, sharing=2)
    assert threads == Threads(3, "OMP_NUM_THREADS=3,1")
    assert threads_per_rank({"OMP_NUM_THREADS": "3"}, cpus(8), local_size=2, sharing=2, asked=5).count == 5


def test_torchruns_one_thread_is_kept_and_named():
    threads = threads_per_rank(
        {"OMP_NUM_THREADS": "1"}, cpus(8), local_size=2, sharing=2, launcher="torchrun"
    )
    assert threads.count == 1
    assert "torchrun" in threads.reason


def test_cpus_that_slurm_granted_to_a_task_are_not_shared():
    """If no mask limits the job, all ranks see all CPUs of the machine."""
    machine = CpuShare(allowed=tuple(range(32)), cores=16, machine=32, granted=16)
    env = {"SLURM_CPUS_PER_TASK": "4"}

    joined = threads_per_rank(env, machine, local_size=2, sharing=2, launcher="slurm")
    forked = threads_per_rank(env, machine, local_size=2, sharing=2, launcher="slurm", forked=2)
    others = threads_per_rank(env, machine, local_size=2, sharing=2, launcher="openmpi")

    assert (joined.count, forked.count, others.count) == (2, 1, 4)


@pytest.mark.parametrize("text", ["many", "0", "-1", "1.5"])
def test_an_invalid_number_of_threads_is_refused(text):
    with pytest.raises(UsageError, match="OMP_NUM_THREADS"):
        threads_per_rank({"OMP_NUM_THREADS": text}, cpus(8), local_size=1, sharing=1)


def test_zero_threads_are_refused():
    with pytest.raises(UsageError, match="threads=0"):
        threads_per_rank({}, cpus(8), local_size=1, sharing=1, asked=0)


@pytest.mark.parametrize(
    ("text", "count"), [(None, 4), ("3", 3), ("3,1", 3)], ids=["divided", "the user's", "nested"]
)
def test_a_worker_gets_the_number_of_threads_and_its_reason(text, count):
    env = {} if text is None else {"OMP_NUM_THREADS": text}
    settled = threads_per_rank(env, cpus(8), local_size=2, sharing=2)
    env |= thread_variables(settled)

    assert settled.count == count
    assert env["OMP_NUM_THREADS"] == (text or "4")
    assert threads_per_rank(env, cpus(8), local_size=2, sharing=2) == settled == passed_threads(env)


def test_a_number_of_threads_that_the_script_sets_replaces_that_of_the_launcher():
    env = thread_variables(Threads(4, "8 usable cores for 2 ranks")) | {"OMP_NUM_THREADS": "2"}
    threads = threads_per_rank(env, cpus(8), local_size=2, sharing=2, launcher="samestep")
    assert threads == Threads(2, "OMP_NUM_THREADS=2")


@pytest.mark.parametrize(("cpus_of_job", "sharing"), [(None, 4), ("8", 4), ("32", 1)])
def test_ranks_share_cpus_unless_their_launcher_divided_them(cpus_of_job, sharing):
    env = {} if cpus_of_job is None else {"SLURM_CPUS_ON_NODE": cpus_of_job}
    assert guess_sharing(env, cpus(8, machine=64), local_size=4) == sharing


EIGHT = Threads(8, "64 usable cores for 8 ranks")


@pytest.mark.parametrize(
    ("place", "more", "line"),
    [
        (Place(), {}, "1 worker, cpu, gloo, 8 threads"),
        (
            Place(size=8, local_size=4, nodes=2),
            {"launcher": "slurm", "job": "12.0"},
            "8 workers = 2 nodes x 4, slurm step 12.0, cpu, gloo, 8 threads each",
        ),
        (
            Place(size=4, local_size=3, nodes=2),
            {"launcher": "slurm", "job": "12.0"},
            "4 workers on 2 nodes, slurm step 12.0, cpu, gloo, 8 threads each",
        ),
        (
            Place(size=4, local_size=4),
            {"launcher": "torchrun", "outer": ("slurm",)},
            "4 workers on one node, torchrun in slurm, cpu, gloo, 8 threads each",
        ),
    ],
)
def test_the_banner_has_the_workers_the_launcher_the_device_and_the_threads(place, more, line):
    detected = Detected(place=place, **more)
    assert describe(detected, device="cpu", backend="gloo", threads=EIGHT) == line


def test_the_banner_has_the_variable_that_set_the_threads():
    line = describe(detect({}), device="cpu", backend=None, threads=Threads(1, "OMP_NUM_THREADS=1"))
    assert line == "1 worker, cpu, 1 thread (OMP_NUM_THREADS=1)"


def test_the_short_banner_has_the_device_the_backend_and_the_threads():
    assert describe_rest(device="cpu", backend="gloo", threads=None) == "cpu, gloo"
    assert describe_rest(device="cpu", backend="gloo", threads=EIGHT) == "cpu, gloo, 8 threads each"
