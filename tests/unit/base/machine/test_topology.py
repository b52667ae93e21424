"""Cores, NUMA nodes and GPUs are read from the kernel's files."""

import pytest

from samestep.base.machine.topology import Core, cores, gpu_nodes


@pytest.fixture
def machine(tmp_path):
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


def test_hardware_threads_are_grouped_by_core(machine):
    found = cores(range(16), system=machine(two_nodes()))

    assert found[0] == Core(0, (0, 8))
    assert [core.node for core in found] == [0] * 4 + [1] * 4


def test_only_allowed_cpus_are_listed(machine):
    assert cores({1, 12, 4}, system=machine(two_nodes())) == (Core(0, (1,)), Core(1, (4, 12)))


def test_cores_are_ordered_by_node_if_cpu_numbers_alternate_between_nodes(machine):
    files = {"node/node0/cpulist": "0,2\n", "node/node1/cpulist": "1,3\n"}

    assert cores(range(4), system=machine(files)) == (
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
def test_the_nodes_of_visible_gpus_are_read(machine, visible, nodes):
    assert gpu_nodes(visible, root=machine(gpus(0, 0, 1, 1)), opens=lambda _: True) == nodes


def test_gpus_of_other_jobs_are_not_counted(machine):
    root = machine(gpus(0, 0, 1, 1))

    assert gpu_nodes("0,1", root=root, opens=lambda path: path.name in ("nvidia2", "nvidia3")) == (1, 1)


def test_gpus_without_a_numa_node_have_no_nodes(machine, tmp_path):
    assert gpu_nodes(None, root=machine(gpus(-1, -1)), opens=lambda _: True) == ()
    assert gpu_nodes(None, root=tmp_path / "none") == ()
