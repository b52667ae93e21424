"""A rank maps the file of rank 0 in shared memory, or reports why it cannot."""

import errno
import mmap
import os
from dataclasses import replace
from pathlib import Path

import pytest

from samestep.ranks.collectives import shared_memory
from samestep.ranks.collectives.shared_memory import _ELSEWHERE, _MARK, _map, _Offer, segment
from samestep.ranks.world.protocol import SoloWorld

MARK = bytes(range(_MARK))


@pytest.fixture
def offer(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_memory, "FILE_SYSTEM", tmp_path)
    path = tmp_path / "memory"
    path.write_bytes(MARK + bytes(4096 - _MARK))
    return _Offer(path, MARK, path.stat().st_dev)


def test_the_file_of_rank_0_is_recognized_by_its_content_and_file_system(offer):
    mapped = _map(offer, 4096)
    assert isinstance(mapped, mmap.mmap)
    mapped.close()
    others = [
        replace(offer, mark=bytes(_MARK)),
        replace(offer, path=offer.path.with_name("absent")),
        replace(offer, device=offer.device + 1),
    ]
    assert [_map(other, 4096) for other in others] == [_ELSEWHERE] * 3


def test_a_limit_of_memory_is_a_reason_of_its_own(offer, monkeypatch):
    def refused(*_):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(shared_memory.mmap, "mmap", refused)
    found = _map(offer, 4096)
    assert isinstance(found, str)
    assert found != _ELSEWHERE
    assert "4 KiB" in found


def test_rank_0_closes_its_file_once_all_ranks_have_mapped_it():
    """Only this finds a descriptor that stays open for each world."""

    def open_files():
        files = map(os.path.realpath, Path("/proc/self/fd").iterdir())
        return sorted(file for file in files if file.startswith(f"{shared_memory.FILE_SYSTEM}/"))

    before = open_files()
    memory = segment(SoloWorld(), 4096)
    assert open_files() != before
    memory.close()
    assert open_files() == before
