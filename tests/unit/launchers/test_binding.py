"""Ranks get equal numbers of whole cores of their host, near their GPU."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep.base import env
from samestep.base.errors import UsageError
from samestep.base.machine.description import Core, CpuShare
from samestep.launchers import binding
from samestep.launchers.binding import bind, checked, processors_of_rank, share_of
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
    monkeypatch.setattr(binding, "cores", lambda _: HOST)
    monkeypatch.setattr(binding, "gpu_nodes", lambda _: (1,))
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
    ("variables", "processors"),
    [
        ({}, 2),
        ({"OMP_NUM_THREADS": "1"}, 2),  # for computing, not for loading
        ({"SAMESTEP_BOUND": "core"}, 8),
        ({"SLURM_CPUS_ON_NODE": "32"}, 8),  # the step has bound each task
    ],
)
def test_a_rank_loads_data_with_its_share_of_the_cpus(monkeypatch, variables, processors):
    cpu = CpuShare(allowed=tuple(range(8)), cores=8, machine=64)
    monkeypatch.setattr(binding, "cpu_share", lambda: cpu)
    monkeypatch.setattr(env, "snapshot", lambda: variables)

    assert processors_of_rank(4) == processors
