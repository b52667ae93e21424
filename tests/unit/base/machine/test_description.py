"""The CPUs and the memory that a process may use are read from the kernel's files."""

import pytest

from samestep.base.machine.cgroup import cpu_limit, memory_limit
from samestep.base.machine.description import CpuShare, cpu_share, enough_for_all, machine, package_version


@pytest.fixture
def kernel(tmp_path):
    """Build /proc and cgroup trees: `mounts` as (root, point, kind, options), `files` below tmp_path."""

    def build(cgroup, mounts, files):
        proc = tmp_path / "proc/self"
        proc.mkdir(parents=True)
        (proc / "cgroup").write_text(cgroup)
        lines = [
            f"31 23 0:28 {root} {tmp_path / point} rw,nosuid - {kind} {kind} {options}"
            for root, point, kind, options in mounts
        ]
        (proc / "mountinfo").write_text("\n".join(["22 1 0:21 / / rw - ext4 /dev/vda rw", *lines]) + "\n")
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path / "proc"

    return build


V2 = [("/", "cg", "cgroup2", "rw,nsdelegate")]
V1 = [("/", "cpu", "cgroup", "rw,cpu,cpuacct"), ("/", "mem", "cgroup", "rw,memory")]


def test_version_2_applies_the_smallest_quota_of_a_group_and_those_above(kernel, tmp_path):
    files = {
        "cg/job/cpu.max": "200000 100000\n",
        "cg/job/step/cpu.max": "max 100000\n",
        "cg/job/step/task/cpu.max": "350000 100000\n",
    }
    limit = cpu_limit(kernel("0::/job/step/task\n", V2, files))
    assert limit.value == 2.0
    assert limit.source == tmp_path / "cg/job/cpu.max"


def test_version_2_without_a_quota_limits_nothing(kernel):
    assert cpu_limit(kernel("0::/job\n", V2, {"cg/job/cpu.max": "max 100000\n"})) is None


def test_version_1_divides_quota_by_period(kernel):
    files = {"cpu/job/cpu.cfs_quota_us": "150000\n", "cpu/job/cpu.cfs_period_us": "100000\n"}
    assert cpu_limit(kernel("4:memory:/job\n2:cpu,cpuacct:/job\n", V1, files)).value == 1.5


def test_version_1_spells_no_quota_as_minus_one(kernel):
    files = {"cpu/job/cpu.cfs_quota_us": "-1\n", "cpu/job/cpu.cfs_period_us": "100000\n"}
    assert cpu_limit(kernel("2:cpu,cpuacct:/job\n", V1, files)) is None


def test_a_container_finds_its_group_at_the_root_of_the_mount(kernel):
    """Docker with version 1: the path is the host's, the mount shows the container's part of it."""
    mounts = [("/docker/abc", "cpu", "cgroup", "rw,cpu,cpuacct")]
    files = {"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}
    assert cpu_limit(kernel("2:cpu,cpuacct:/docker/abc\n", mounts, files)).value == 4.0


def test_a_group_that_is_not_visible_falls_back_to_those_above(kernel):
    assert cpu_limit(kernel("0::/hidden/group\n", V2, {"cg/cpu.max": "300000 100000\n"})).value == 3.0


def test_the_smallest_memory_limit_of_both_versions_applies(kernel):
    files = {"cg/job/memory.max": "1073741824\n", "mem/job/memory.limit_in_bytes": "536870912\n"}
    limit = memory_limit(kernel("4:memory:/job\n0::/job\n", [*V1, *V2], files))
    assert limit.value == 2**29


def test_the_largest_number_of_version_1_is_no_memory_limit(kernel):
    files = {"mem/job/memory.limit_in_bytes": "9223372036854771712\n"}
    assert memory_limit(kernel("4:memory:/job\n", V1, files)) is None


def test_without_the_kernels_files_nothing_is_limited(tmp_path):
    assert cpu_limit(tmp_path) is None
    assert memory_limit(tmp_path) is None


def test_hardware_threads_of_one_core_count_as_one_cpu(tmp_path):
    for cpu in range(8):
        folder = tmp_path / f"cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")

    def share(*allowed):
        return cpu_share(allowed=allowed, machine_cpus=8, proc=tmp_path, sys_cpu=tmp_path)

    assert share(*range(8)).usable == 4
    assert share(0, 4).usable == 1
    assert share(0, 1).limited_by == "affinity mask of 2 of 8 CPUs"
    assert share(*range(8)).limited_by == "the machine itself"


def test_a_quota_below_the_affinity_mask_limits_the_cpus(kernel, tmp_path):
    proc = kernel("0::/job\n", V2, {"cg/job/cpu.max": "250000 100000\n"})
    share = cpu_share(allowed=range(8), machine_cpus=8, proc=proc, sys_cpu=tmp_path)
    assert share.usable == 2
    assert share.limited_by == f"cgroup quota of 2.5 CPUs in {tmp_path / 'cg/job/cpu.max'}"


def test_a_quota_below_one_cpu_counts_as_one(kernel, tmp_path):
    proc = kernel("0::/job\n", V2, {"cg/job/cpu.max": "50000 100000\n"})
    assert cpu_share(allowed=[0], machine_cpus=8, proc=proc, sys_cpu=tmp_path).usable == 1


def test_the_description_of_this_machine_has_cpus_memory_and_versions():
    here = machine()
    assert here.cpu.usable >= 1
    assert here.memory_bytes > 0
    assert here.torch != "not installed"
    assert package_version("surely-not-a-package") == "not installed"


@pytest.fixture
def slurm(tmp_path):
    """Return a function that computes the CPU share of a Slurm task on 8 cores with 2 threads each."""
    for cpu in range(16):
        folder = tmp_path / f"cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu % 8},{cpu % 8 + 8}\n")

    def share(**variables):
        return cpu_share(
            allowed=range(16), machine_cpus=16, proc=tmp_path, sys_cpu=tmp_path, environment=variables
        )

    return share


def test_a_job_uses_the_cpus_that_slurm_granted_even_without_an_affinity_mask_or_quota(slurm):
    share = slurm(SLURM_CPUS_ON_NODE="6", SLURMD_NODENAME="node0")

    assert (share.usable, share.granted_cores) == (3, 3)
    assert share.limited_by == "Slurm's grant of 6 CPUs (SLURM_CPUS_ON_NODE)"


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"SLURM_CPUS_ON_NODE": "6"},  # a shell of salloc, which may be on the login node
        {"SLURM_CPUS_ON_NODE": "64", "SLURMD_NODENAME": "node0"},
        {"SLURM_CPUS_ON_NODE": "", "SLURMD_NODENAME": "node0"},
    ],
)
def test_without_a_valid_grant_of_slurm_all_cores_of_the_machine_are_usable(slurm, variables):
    share = slurm(**variables)

    assert (share.usable, share.limited_by) == (8, "the machine itself")


def share(*allowed, **limits):
    return CpuShare(allowed=allowed, cores=len(allowed), machine=8, **limits)


@pytest.mark.parametrize(
    ("shares", "enough"),
    [
        ([share(0, 1), share(0, 1)], True),
        ([share(0), share(0)], False),
        ([share(0), share(1)], True),  # bound to different CPUs: one each is enough
        ([share(0), share(0, 1)], False),
        ([share(0, quota=1.5), share(1, quota=1.5)], False),
        ([share(0, granted=1), share(1, granted=1)], False),
        ([share(0, granted=2), share(1, granted=2)], True),
    ],
)
def test_cpus_are_enough_if_each_process_has_one_of_its_own(shares, enough):
    assert enough_for_all(shares) == enough
