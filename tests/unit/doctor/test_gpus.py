"""The location and the links of GPUs are read, and wrong copies between them are reported."""

import subprocess

import pytest
import torch

from samestep.doctor import gpus
from samestep.doctor.gpus import (
    Accelerators,
    Copy,
    Gpu,
    copy_all_pairs,
    copy_and_compare,
    parse_gpus,
    parse_links,
    read_cards,
)
from support import trees

TOPOLOGY = """\
\x1b[4m\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV4\tSYS\tSYS\tPIX\t0-47,96-143\t0\t\tN/A
GPU1\tNV4\t X \tSYS\tSYS\tNODE\t0-47,96-143\t0\t\tN/A
GPU2\tSYS\tSYS\t X \tNV4\tSYS\t48-95,144-191\t1\t\tN/A
GPU3\tSYS\tSYS\tNV4\t X \tSYS\t48-95,144-191\t1\t\tN/A
NIC0\tPIX\tNODE\tSYS\tSYS\t X \t\t\t\t

Legend:

  X    = Self
  SYS  = across sockets
"""

LISTED = """\
0, GPU-aaaa, 00000000:1B:00.0, NVIDIA H100 80GB HBM3, 81559, 4
4, GPU-bbbb, 00000000:5F:00.0, NVIDIA H100 80GB HBM3, 81559, 70000
"""


@pytest.fixture
def node(tmp_path):
    return trees.planted(tmp_path, trees.two_sockets_with_eight_gpus())


def judged(root, *, uuid="", allowed=range(192), visible=8, copies=()):
    seen = Accelerators(cards=read_cards(root), gpus=parse_gpus(LISTED), copies=copies)
    part = gpus.judge(seen, visible=visible, uuid=uuid, allowed=allowed)
    return part, [(finding.text, finding.hurts) for finding in part.findings]


def test_eight_gpus_at_two_sockets_are_found(node):
    found = read_cards(node)
    assert [card.address for card in found] == [f"0000:{0x1B + 0x11 * i:02x}:00.0" for i in range(8)]
    assert [card.numa for card in found] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert (found[7].cpus, found[7].width, found[7].vendor) == ("48-95,144-191", (16, 16), "NVIDIA")


def test_a_numa_node_of_minus_one_is_unknown(tmp_path):
    root = trees.planted(tmp_path, trees.gpu_slot("0000:01:00.0", numa=-1, cpus="0-7"))
    assert read_cards(root)[0].numa is None


def test_the_list_of_nvidia_smi_is_parsed(node):
    first, second = parse_gpus(LISTED + "garbage\n")
    assert first == Gpu(
        index=0,
        uuid="GPU-aaaa",
        address="0000:1b:00.0",
        name="NVIDIA H100 80GB HBM3",
        memory=81559 * 2**20,
        used=4 * 2**20,
    )
    assert second.index == 4


def test_the_topology_of_nvidia_smi_is_parsed_without_network_adapters():
    links = parse_links(TOPOLOGY)
    assert len(links) == 12
    assert (links[0, 1], links[3, 2], links[1, 2]) == ("NV4", "NV4", "SYS")
    assert parse_links("no devices were found") == {}


def test_the_location_and_the_links_of_gpus_are_shown(node):
    seen = Accelerators(cards=read_cards(node), gpus=parse_gpus(LISTED), links=parse_links(TOPOLOGY))
    rows = [value for _, value in gpus.judge(seen, visible=8, uuid="", allowed=range(192)).rows]
    assert rows[0] == (
        "GPU 0 NVIDIA H100 80GB HBM3 at 0000:1b:00.0, NUMA node 0 (CPUs 0-47,96-143), PCIe x16 32.0 GT/s PCIe"
    )
    assert rows[9].split() == ["0", "-", "NV4", "SYS", "SYS"]


def test_a_rank_on_the_wrong_socket_is_a_note(node):
    _, found = judged(node, uuid="aaaa", allowed=range(48, 96))
    ((text, hurts),) = found
    assert not hurts
    assert "GPU 0, which is at NUMA node 0 (CPUs 0-47,96-143)" in text
    assert judged(node, uuid="aaaa", allowed=range(40, 60))[1] == []


def test_a_gpu_in_use_by_other_processes_is_a_problem(node):
    ((text, hurts),) = judged(node, uuid="bbbb", allowed=range(192))[1]
    assert hurts
    assert "68.4 GiB of 79.6 GiB in use already" in text


def test_gpus_that_torch_does_not_find_are_a_note(node):
    ((text, hurts),) = judged(node, visible=0)[1]
    assert not hurts
    assert "NVIDIA at 0000:1b:00.0" in text


def test_gpus_that_torch_was_not_asked_for_are_no_note(node):
    assert judged(node, visible=None)[1] == []


def test_a_gpu_with_too_few_pcie_lanes_is_a_note(tmp_path):
    root = trees.planted(tmp_path, trees.gpu_slot("0000:01:00.0", numa=-1, cpus="0-7", width="4"))
    ((text, hurts),) = judged(root, visible=1)[1]
    assert not hurts
    assert "0000:01:00.0 (x4 of x16)" in text


def test_a_copy_is_compared_value_by_value():
    cpu = torch.device("cpu")
    wrong, values, speed = copy_and_compare(cpu, cpu, 1000)
    assert (wrong, values) == (0, 1000)
    assert speed > 0


def test_a_wrong_copy_between_gpus_is_a_problem(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.Tensor, "copy_", lambda self, source: self)
    wrong, values, _ = copy_and_compare(torch.device("cpu"), torch.device("cpu"), 1000)
    assert wrong == values == 1000

    found = copy_all_pairs(2, lambda a, b: (wrong if a else 0, values, 1e10), direct=lambda a, b: a < b)
    assert [(copy.source, copy.target, copy.wrong, copy.direct) for copy in found] == [
        (0, 1, 0, True),
        (1, 0, 1000, False),
    ]
    part, texts = judged(tmp_path, visible=2, copies=found)
    ((text, hurts),) = texts
    assert hurts
    assert "1000 of 1000 values from GPU 1 to GPU 0" in text
    assert "NCCL_P2P_DISABLE=1" in text
    shown = [value.split() for _, value in part.rows]
    assert shown == [
        ["GB/s", "0", "1"],
        ["0", "-", "10"],
        ["1", "WRONG", "-"],
        ["h:", "through", "host", "memory"],
    ]


def test_correct_copies_have_no_finding(tmp_path):
    copies = [Copy(source=0, target=1, direct=True, wrong=0, values=9, bytes_per_s=1e9)]
    assert judged(tmp_path, visible=2, copies=copies)[1] == []


def test_without_gpus_nvidia_smi_is_not_run(tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "run", None)
    assert gpus.read(tmp_path) == Accelerators(cards=[], copies=())


def test_a_hanging_nvidia_smi_raises_a_timeout_error(monkeypatch):
    def hang(*_, timeout, **__):
        raise subprocess.TimeoutExpired("nvidia-smi", timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(TimeoutError, match="the driver hangs"):
        gpus.nvidia_smi("topo", "-m")
