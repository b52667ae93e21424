"""Defaults that a launcher sets are undone; settings of the user are kept."""

import os

import pytest

from samestep.launchers.processors import undo_default_binding, without_default_threads

RANK = {"RANK": "0", "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}


def threads_of(env, *above, launcher="torchrun"):
    found = without_default_threads(
        env, launcher, ancestors=lambda: ((str(n), one) for n, one in enumerate(above))
    )
    return found.get("OMP_NUM_THREADS")


def test_the_one_thread_that_torchrun_sets_is_removed():
    assert threads_of(RANK, {"HOME": "/"}) is None
    assert threads_of(RANK, RANK, {"HOME": "/"}) is None  # a shell between the two


@pytest.mark.parametrize(
    ("env", "above", "launcher"),
    [
        (RANK, [{"OMP_NUM_THREADS": "1"}], "torchrun"),
        (RANK, [RANK, {"OMP_NUM_THREADS": "1"}], "torchrun"),
        (RANK, [], "torchrun"),  # no ancestor can be read
        (RANK | {"OMP_NUM_THREADS": "2"}, [{}], "torchrun"),
        (RANK | {"SAMESTEP_THREADS": "1 as asked"}, [{}], "torchrun"),
        (RANK, [{}], "slurm"),
    ],
)
def test_a_number_of_threads_that_the_user_may_have_set_is_kept(env, above, launcher):
    assert threads_of(env, *above, launcher=launcher) == env["OMP_NUM_THREADS"]


@pytest.fixture
def masks(monkeypatch):
    """Return the masks of a rank (0), bound to one CPU, and of its launcher (7); changes are recorded."""
    found = {0: {3}, 7: {2, 3, 4}}
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(found[pid]))
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, mask: found.update({pid: set(mask)}))
    return found


def unbound(env=None, launcher="openmpi", above=(("7", {}),)):
    rank = {"OMPI_COMM_WORLD_RANK": "1"}
    shell = ("5", rank)
    return undo_default_binding(rank | (env or {}), launcher, ancestors=lambda: iter([shell, *above]))


def test_the_binding_of_open_mpi_to_one_core_is_replaced_by_the_mask_of_the_launcher(masks):
    assert unbound()
    assert masks[0] == {2, 3, 4}


@pytest.mark.parametrize(
    "settings",
    [
        {"env": {"OMPI_MCA_hwloc_base_binding_policy": "core"}},
        {"env": {"OMPI_MCA_rmaps_base_mapping_policy": "slot:pe=1"}},
        {"launcher": "slurm", "above": ()},
        {"above": ()},
    ],
    ids=["bind-to", "mapping", "another launcher", "no ancestor"],
)
def test_a_requested_binding_is_kept(masks, settings):
    assert not unbound(**settings)
    assert masks[0] == {3}


@pytest.mark.parametrize(("mine", "theirs"), [({3}, {3}), ({3}, {0, 1}), ({2, 3}, {2, 3, 4})])
def test_an_affinity_that_is_not_the_default_of_open_mpi_is_kept(masks, mine, theirs):
    masks.update({0: mine, 7: theirs})

    assert not unbound()
    assert masks[0] == mine
