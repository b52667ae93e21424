import errno
import mmap
from pathlib import Path

import pytest

from samestep.ranks.collectives import shared_memory_world
from samestep.ranks.collectives.shared_memory_world import _ELSEWHERE, _MARK, _map

MARK = bytes(range(_MARK))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "memory"
    path.write_bytes(MARK + bytes(4096 - _MARK))
    return path


def test_the_file_of_rank_0_is_recognized_by_its_content(file: Path) -> None:
    mapped = _map(file, MARK, 4096)
    assert isinstance(mapped, mmap.mmap)
    mapped.close()
    assert _map(file, bytes(_MARK), 4096) == _ELSEWHERE
    assert _map(file.with_name("absent"), MARK, 4096) == _ELSEWHERE


def test_a_limit_of_memory_is_a_reason_of_its_own(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(shared_memory_world.mmap, "mmap", refused)
    found = _map(file, MARK, 4096)
    assert isinstance(found, str)
    assert found != _ELSEWHERE
    assert "4 KiB" in found
