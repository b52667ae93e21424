"""The versions of the accelerator software are those of the device in use."""

import torch
from torch.cuda import nccl

from samestep.ranks.world.device import driver_version, toolkit_versions


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
