"""Shared memory of ended workers is freed; that of other processes is kept."""

import os
import time

import pytest

from samestep.base.machine import torch_segments


@pytest.fixture
def memory(tmp_path, monkeypatch):
    """Return a folder for /dev/shm that has a segment of a worker and one of another process."""
    monkeypatch.setattr(torch_segments, "_SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(torch_segments, "memory_is_numbered_apart", lambda: False)
    for name in ("torch_12_1_0", "torch_13_1_0"):
        (tmp_path / name).write_bytes(b"12345")
    return tmp_path


def left(folder):
    return sorted(path.name for path in folder.iterdir())


def test_an_ended_workers_memory_is_freed(memory):
    torch_segments.free_segments({12}, since_s=time.time() - 60)
    assert left(memory) == ["torch_13_1_0"]


def test_memory_that_is_older_than_the_workers_is_kept(memory):
    torch_segments.free_segments({12, 13}, since_s=time.time() + 60)
    assert left(memory) == ["torch_12_1_0", "torch_13_1_0"]


def test_memory_of_another_user_is_kept(memory, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: -1)
    torch_segments.free_segments({12, 13}, since_s=time.time() - 60)
    assert left(memory) == ["torch_12_1_0", "torch_13_1_0"]


def test_in_a_container_that_shares_the_hosts_memory_nothing_is_freed(memory, monkeypatch):
    monkeypatch.setattr(torch_segments, "memory_is_numbered_apart", lambda: True)
    torch_segments.free_segments({12, 13}, since_s=time.time() - 60)
    assert left(memory) == ["torch_12_1_0", "torch_13_1_0"]
