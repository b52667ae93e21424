"""The device and the back end of a rank are chosen from its visible devices, or refused with the reason."""

import pytest
import torch
from torch.cuda import nccl

from samestep.base.errors import UsageError
from samestep.base.place import Place
from samestep.ranks.world.device import (
    DeviceFacts,
    backend_name,
    choose_backend,
    choose_device,
    driver_version,
    shown_alone,
    toolkit_versions,
)

NONE = DeviceFacts()


def gpus(count, kind="cuda", label=None):
    uuids = tuple(f"GPU-{i}" for i in range(count))
    return DeviceFacts(kind=kind, count=count, uuids=uuids, label=label or kind)


def local(rank, size):
    return Place(rank=rank, size=size, local_rank=rank, local_size=size)


@pytest.mark.parametrize(
    ("facts", "place", "asked", "device"),
    [
        (NONE, local(1, 2), None, "cpu"),
        (gpus(4), local(1, 2), "cpu", "cpu"),
        (gpus(1), local(0, 1), None, "cuda:0"),
        (gpus(1), local(3, 4), None, "cuda:0"),  # one visible device for each task
        (gpus(4), local(3, 4), None, "cuda:3"),
        (gpus(8), local(1, 2), None, "cuda:1"),
        (gpus(4), local(3, 4), "cuda", "cuda:3"),
        (gpus(4), local(0, 1), "cuda:2", "cuda:2"),
        (gpus(4, label="rocm"), local(2, 4), None, "cuda:2"),
        (gpus(2, kind="xpu"), local(1, 2), None, "xpu:1"),
        (gpus(2, kind="xpu"), local(1, 2), "xpu", "xpu:1"),
        (gpus(1, kind="mps"), local(0, 1), "mps", "mps:0"),
    ],
)
def test_a_rank_gets_its_only_visible_device_or_that_of_its_local_rank(facts, place, asked, device):
    choice = choose_device(facts, place, asked=asked)
    assert choice.device == device
    assert choice.kind == device.partition(":")[0]


@pytest.mark.parametrize(
    ("facts", "place", "asked", "parts"),
    [
        (gpus(2), local(0, 4), None, ["4 ranks", "2 visible cuda"]),
        (NONE, local(0, 2), "cuda", ["device=cuda", "0 cpu"]),
        (gpus(2), local(0, 2), "xpu", ["device=xpu", "2 cuda"]),
        (gpus(2), local(0, 1), "cuda:2", ["number 2", "sees 2"]),
        (gpus(2), local(0, 1), "cuda:x", ["number -1"]),
        (gpus(1, kind="mps"), local(0, 2), "mps", ["mps", "2 ranks"]),
        (NONE, local(0, 1), "tpu", ["device=tpu"]),
    ],
)
def test_a_missing_device_is_refused(facts, place, asked, parts):
    with pytest.raises(UsageError) as refused:
        choose_device(facts, place, asked=asked)
    assert all(part in str(refused.value) for part in parts), str(refused.value)


@pytest.mark.parametrize(
    ("kind", "asked", "backend"),
    [
        ("cpu", None, "gloo"),
        ("cuda", None, "nccl"),
        ("xpu", None, "xccl"),
        ("cuda", "gloo", "gloo"),
        ("cpu", "mpi", "mpi"),
        ("cuda", "NCCL", "nccl"),
    ],
)
def test_the_default_back_end_is_that_of_the_device(kind, asked, backend):
    assert choose_backend(kind, asked=asked, available=lambda name: True) == backend


@pytest.mark.parametrize(
    ("kind", "asked", "built", "parts"),
    [
        ("cpu", "mpi", {"gloo"}, "no mpi back end.*backend=gloo"),
        ("cuda", None, {"gloo"}, "no nccl back end.*device=cpu"),
        ("cpu", "nccl", {"gloo", "nccl"}, "backend=nccl cannot carry cpu tensors. Use gloo"),
        ("xpu", "nccl", {"xccl", "nccl"}, "backend=nccl cannot carry xpu tensors. Use xccl"),
        ("mps", None, {"gloo"}, "no back end carries tensors of device 'mps'"),
    ],
)
def test_an_unavailable_or_unsuitable_back_end_is_refused(kind, asked, built, parts):
    with pytest.raises(UsageError, match=parts):
        choose_backend(kind, asked=asked, available=built.__contains__)


CUDA, HIP = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("count", "environment", "place", "shown"),
    [
        (0, {}, local(1, 2), None),
        (1, {CUDA: "3"}, local(1, 2), None),  # its launcher has set the variable for it
        (2, {}, local(0, 4), None),  # refused when a device is chosen
        (4, {}, local(1, 2), {CUDA: "1"}),
        (2, {CUDA: "5,7"}, local(1, 2), {CUDA: "7"}),
        (2, {CUDA: "GPU-a, GPU-b"}, local(1, 2), {CUDA: "GPU-b"}),
        (2, {HIP: "5,7"}, local(1, 2), {CUDA: "1", HIP: "7"}),  # ROCm then ignores the other variable
    ],
)
def test_the_visible_devices_of_a_rank_are_restricted_to_its_own(count, environment, place, shown):
    assert shown_alone(count, environment, place) == shown


@pytest.mark.parametrize(
    ("kind", "backend", "cpu_tensors", "name"),
    [
        ("cpu", "gloo", True, "gloo"),
        ("cuda", "nccl", False, "nccl"),
        ("cuda", "nccl", True, "cpu:gloo,cuda:nccl"),
        ("xpu", "xccl", True, "cpu:gloo,xpu:xccl"),
        ("cuda", "gloo", True, "gloo"),
    ],
)
def test_gloo_carries_tensors_of_the_cpu_beside_those_of_a_device(kind, backend, cpu_tensors, name):
    assert backend_name(kind, backend, cpu_tensors=cpu_tensors) == name


def test_versions_are_those_of_the_device(tmp_path, monkeypatch):
    (tmp_path / "version").write_text("560.35.05\n")
    monkeypatch.setattr(torch.version, "cuda", "12.6")
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(nccl, "version", lambda: (2, 27, 5))
    assert toolkit_versions("cuda") == {"cuda": "12.6", "nccl": "2.27.5"}
    assert driver_version("cuda", tmp_path / "version") == "560.35.05"
    assert (toolkit_versions("cpu"), driver_version("cpu", tmp_path / "version")) == ({}, "")


def test_unknown_versions_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", "6.4.2")
    assert toolkit_versions("cuda") == {"hip": "6.4.2"}
    assert driver_version("cuda", tmp_path / "version") == ""
