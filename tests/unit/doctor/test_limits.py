"""The limits of the kernel are read, and those that are too low for the ranks are reported."""

import pytest

from samestep.doctor import limits
from samestep.doctor.limits import Limits
from support import trees

GIB = 2**30
SUFFICIENT = Limits(shared_memory=(8 * GIB, 8 * GIB), files=(65536, 65536))


def texts(found, *, local_size=4, infiniband=False):
    part = limits.judge(found, local_size=local_size, infiniband=infiniband)
    return [(finding.text, finding.hurts) for finding in part.findings]


def test_sufficient_limits_have_no_finding():
    assert texts(SUFFICIENT, infiniband=True) == []


def test_the_limits_of_a_cgroup_v2_container_are_read(tmp_path):
    """The limits of open files and processes of a container with Docker's defaults."""
    group = tmp_path / "sys/fs/cgroup"
    files = trees.container()
    files["proc/self/mountinfo"] = files["proc/self/mountinfo"].format(group=group)
    root = trees.planted(tmp_path, {**files, "sys/fs/cgroup/pids.max": "100", "dev/shm/placeholder": ""})
    found = limits.read(root)

    assert found.files == (1024, 524288)
    assert (found.processes, found.processes_from) == (100, str(group / "pids.max"))
    assert found.locked is None
    assert found.shared_memory is not None
    few_files, few_processes = texts(Limits(**{**_fields(found), "shared_memory": (8 * GIB, 8 * GIB)}))
    assert "1024 open files" in few_files[0]
    assert "ulimit -n 65536" in few_files[0]
    assert f"100 processes and threads are allowed ({group / 'pids.max'})" in few_processes[0]


@pytest.mark.parametrize(("of_user", "found"), [("50", 50), ("200", 100), ("unlimited", 100)])
def test_the_lower_limit_of_processes_holds(tmp_path, of_user, found):
    """Only this finds the limit of the user in place of a lower one of the container, or the reverse."""
    group = tmp_path / "sys/fs/cgroup"
    files = trees.container()
    files["proc/self/mountinfo"] = files["proc/self/mountinfo"].format(group=group)
    files["proc/self/limits"] = (
        f"Max processes             {of_user}                {of_user}            processes\n"
    )
    root = trees.planted(tmp_path, {**files, "sys/fs/cgroup/pids.max": "100"})
    assert limits.read(root).processes == found


def _fields(found):
    return {name: getattr(found, name) for name in Limits.__slots__}


def test_missing_shared_memory_is_a_problem(tmp_path):
    found = limits.read(tmp_path)
    assert found == Limits(shared_memory=None, files=(None, None))
    ((text, hurts),) = texts(found)
    assert hurts
    assert "no /dev/shm" in text


def test_shared_memory_of_64_mib_is_a_problem():
    ((text, hurts),) = texts(Limits(shared_memory=(64 * 2**20, 64 * 2**20), files=(65536, 65536)))
    assert hurts
    assert "is small (64 MiB free of 64 MiB)" in text
    assert "--shm-size" in text


def test_full_shared_memory_has_its_own_message():
    ((text, _),) = texts(Limits(shared_memory=(8 * GIB, 2**20), files=(65536, 65536)))
    assert "is full" in text


@pytest.mark.parametrize(("soft", "hurts"), [(1024, True), (2048, False), (None, None), (4096, None)])
def test_a_low_limit_of_open_files_is_a_problem_and_a_moderate_one_a_note(soft, hurts):
    found = texts(Limits(shared_memory=(8 * GIB, 8 * GIB), files=(soft, 524288)))
    assert [one[1] for one in found] == ([] if hurts is None else [hurts])


def test_little_locked_memory_is_a_problem_with_infiniband():
    little = Limits(shared_memory=(8 * GIB, 8 * GIB), files=(65536, 65536), locked=8 * 2**20)
    assert texts(little) == []
    ((text, _),) = texts(little, infiniband=True)
    assert "ulimit -l unlimited" in text


def test_a_limit_that_the_user_cannot_raise_has_other_advice():
    ((text, _),) = texts(Limits(shared_memory=(8 * GIB, 8 * GIB), files=(1024, 1024)))
    assert "cannot be raised from here" in text
    assert "ulimit -n" not in text
