"""The ranks of a host divide its processors: threads, and whole cores near their GPU; the banner has them."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep.base import env
from samestep.base.errors import UsageError
from samestep.base.machine.description import Core, CpuShare
from samestep.base.place import Place
from samestep.launchers import processors
from samestep.launchers.detect import Detected, detect
from samestep.launchers.processors import (
    Threads,
    bind,
    checked,
    guess_sharing,
    passed_threads,
    processors_of_rank,
    share_of,
    thread_variables,
    threads_per_rank,
)
from samestep.ranks.world.banner import describe, describe_rest
from support.recordings import recording

HOST = [Core(node, (4 * node + core, 8 + 4 * node + core)) for node in (0, 1) for core in range(4)]


def shares(kind, size, here=HOST, near=()):
    return [share_of(kind, here, local_rank=rank, local_size=size, near=near) for rank in range(size)]


def test_each_rank_gets_cores_of_its_own():
    assert shares("core", 4) == [(0, 1, 8, 9), (2, 3, 10, 11), (4, 5, 12, 13), (6, 7, 14, 15)]


def test_each_rank_gets_the_numa_node_of_its_cores():
    assert shares("numa", 2) == [(0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)]


def test_cores_are_on_the_node_of_the_ranks_gpu():
    assert shares("core", 2, near=(1, 0)) == [(4, 5, 6, 7, 12, 13, 14, 15), (0, 1, 2, 3, 8, 9, 10, 11)]
    assert shares("core", 2, near=(1, 1)) == [(4, 5, 12, 13), (6, 7, 14, 15)]
    assert shares("core", 2, near=(1, 1, 0, 0)) == shares("core", 2, near=(1, 1))


def test_gpus_near_too_few_cores_are_ignored():
    assert shares("core", 2, near=(2, 2)) == shares("core", 2)
    assert shares("core", 2, near=(1,)) == shares("core", 2)


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=40),
    st.integers(1, 8),
    st.lists(st.integers(0, 3), max_size=8),
)
def test_all_ranks_get_equal_numbers_of_cores_and_no_two_the_same_core(nodes, size, near):
    here = sorted((Core(node, (cpu,)) for cpu, node in enumerate(nodes)), key=lambda c: (c.node, c.cpus))
    if len(here) < size:
        with pytest.raises(UsageError, match="cannot have a core each"):
            shares("core", size, here, near)
        return
    found = shares("core", size, here, near)

    assert len({len(share) for share in found}) == 1
    assert all(found)
    assert len({cpu for share in found for cpu in share}) == sum(map(len, found))


def test_binding_is_refused_if_slurm_shows_each_rank_its_own_gpu_only(monkeypatch):
    monkeypatch.setattr(processors, "cores", lambda _: HOST)
    monkeypatch.setattr(processors, "gpu_nodes", lambda _: (1,))
    bound = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cpus: bound.append(cpus))
    monkeypatch.setattr(env, "export", lambda _: None)
    slurm = recording("slurm_one_gpu_per_task_rank3")

    with pytest.raises(UsageError, match=r"sees its own GPU only.* --gpu-bind=none"):
        bind("core", slurm.place, slurm.environment)
    assert not bound
    bind("core", slurm.place, {})  # one GPU on the host, which the ranks need not use
    assert bound == [(4, 5, 6, 7, 12, 13, 14, 15)]


def test_an_unknown_binding_is_refused():
    with pytest.raises(UsageError, match="--bind 'socket' is none of core, numa, none"):
        checked("socket")


@pytest.mark.parametrize(
    ("variables", "count"),
    [
        ({}, 2),
        ({"OMP_NUM_THREADS": "1"}, 2),  # for computing, not for loading
        ({"SAMESTEP_BOUND": "core"}, 8),
        ({"SLURM_CPUS_ON_NODE": "32"}, 8),  # the step has bound each task
    ],
)
def test_a_rank_loads_data_with_its_share_of_the_cpus(monkeypatch, variables, count):
    cpu = CpuShare(allowed=tuple(range(8)), cores=8, machine=64)
    monkeypatch.setattr(processors, "cpu_share", lambda: cpu)
    monkeypatch.setattr(env, "snapshot", lambda: variables)

    assert processors_of_rank(4) == count


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
    with pytest.raises(UsageError, match="--threads 0"):
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
