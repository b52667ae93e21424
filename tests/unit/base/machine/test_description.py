"""The CPUs and the memory that a process may use are read from the kernel's files."""

import numpy as np
import pytest

from samestep.base.errors import UsageError
from samestep.base.machine.description import (
    Core,
    CpuShare,
    cores,
    cpu_limit,
    cpu_share,
    enough_for_all,
    gpu_nodes,
    machine,
    memory_limit,
    number_of_workers,
    package_version,
)


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


def test_a_file_of_a_quota_that_is_empty_or_cannot_be_read_is_no_quota(kernel):
    assert cpu_limit(kernel("0::/job\n", V2, {"cg/job/cpu.max": ""})) is None


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
        folder = tmp_path / f"cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")

    def share(*allowed):
        return cpu_share(allowed=allowed, machine_cpus=8, proc=tmp_path, system=tmp_path)

    assert share(*range(8)).usable == 4
    assert share(0, 4).usable == 1
    assert share(0, 1).limited_by == "affinity mask of 2 of 8 CPUs"
    assert share(*range(8)).limited_by == "the machine itself"


def test_a_quota_below_the_affinity_mask_limits_the_cpus(kernel, tmp_path):
    proc = kernel("0::/job\n", V2, {"cg/job/cpu.max": "250000 100000\n"})
    share = cpu_share(allowed=range(8), machine_cpus=8, proc=proc, system=tmp_path)
    assert share.usable == 2
    assert share.limited_by == f"cgroup quota of 2.5 CPUs in {tmp_path / 'cg/job/cpu.max'}"


def test_a_quota_below_one_cpu_counts_as_one(kernel, tmp_path):
    proc = kernel("0::/job\n", V2, {"cg/job/cpu.max": "50000 100000\n"})
    assert cpu_share(allowed=[0], machine_cpus=8, proc=proc, system=tmp_path).usable == 1


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
        folder = tmp_path / f"cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu % 8},{cpu % 8 + 8}\n")

    def share(**variables):
        return cpu_share(
            allowed=range(16), machine_cpus=16, proc=tmp_path, system=tmp_path, environment=variables
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


@pytest.fixture
def kernel_files(tmp_path):
    """Write files below a root, given as path and text."""

    def write(files):
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path

    return write


def two_nodes():
    """Return the files of two nodes with four cores each; CPUs 8 to 15 are the second threads."""
    files = {f"cpu/cpu{cpu}/topology/thread_siblings_list": f"{cpu % 8},{cpu % 8 + 8}\n" for cpu in range(16)}
    return files | {"node/node0/cpulist": "0-3,8-11\n", "node/node1/cpulist": "4-7,12-15\n"}


def test_hardware_threads_are_grouped_by_core(kernel_files):
    found = cores(range(16), system=kernel_files(two_nodes()))

    assert found[0] == Core(0, (0, 8))
    assert [core.node for core in found] == [0] * 4 + [1] * 4


def test_only_allowed_cpus_are_listed(kernel_files):
    assert cores({1, 12, 4}, system=kernel_files(two_nodes())) == (Core(0, (1,)), Core(1, (4, 12)))


def test_cores_are_ordered_by_node_if_cpu_numbers_alternate_between_nodes(kernel_files):
    files = {"node/node0/cpulist": "0,2\n", "node/node1/cpulist": "1,3\n"}

    assert cores(range(4), system=kernel_files(files)) == (
        Core(0, (0,)),
        Core(0, (2,)),
        Core(1, (1,)),
        Core(1, (3,)),
    )


def test_without_kernel_files_each_cpu_is_a_core(tmp_path):
    assert cores({0, 1}, system=tmp_path) == (Core(0, (0,)), Core(0, (1,)))


def gpus(*nodes):
    files = {}
    for minor, node in enumerate(nodes):
        address = f"0000:{minor + 1:02x}:00.0"
        files[f"proc/driver/nvidia/gpus/{address}/information"] = (
            f"Model: \t\t NVIDIA H200\nIRQ:   \t\t 97\nGPU UUID: \t GPU-{minor}{minor}-aa\n"
            f"Device Minor: \t {minor}\n"
        )
        files[f"sys/bus/pci/devices/{address}/numa_node"] = f"{node}\n"
    return files


@pytest.mark.parametrize(
    ("visible", "nodes"),
    [
        (None, (0, 0, 1, 1)),
        ("2,0", (1, 0)),
        ("GPU-33-aa,GPU-00", (1, 0)),
        ("7", ()),
        ("MIG-5", ()),
        ("", ()),
    ],
)
def test_the_nodes_of_visible_gpus_are_read(kernel_files, visible, nodes):
    assert gpu_nodes(visible, root=kernel_files(gpus(0, 0, 1, 1)), opens=lambda _: True) == nodes


def test_gpus_of_other_jobs_are_not_counted(kernel_files):
    root = kernel_files(gpus(0, 0, 1, 1))

    assert gpu_nodes("0,1", root=root, opens=lambda path: path.name in ("nvidia2", "nvidia3")) == (1, 1)


def test_gpus_without_a_numa_node_have_no_nodes(kernel_files, tmp_path):
    assert gpu_nodes(None, root=kernel_files(gpus(-1, -1)), opens=lambda _: True) == ()
    assert gpu_nodes(None, root=tmp_path / "none") == ()


@pytest.mark.parametrize("given", ["2", "auto", 2.0, None, 0, -1, 10**6])
def test_a_number_of_workers_that_cannot_start_is_refused(given):
    with pytest.raises(UsageError):
        number_of_workers(given, f"samestep.workers({given!r})")


def test_an_integer_of_numpy_is_a_number_of_workers():
    assert number_of_workers(np.int64(2), "samestep.workers(2)") == 2
