"""Lines that cannot be written wait in memory, and are reported once."""

import errno
import os
import shutil

import pytest

from samestep.training.output.run_folder import LineFiles, RunFolder
from support.systems import small_file_system


@pytest.fixture
def told():
    return []


def test_lines_wait_until_the_file_can_be_written_in_their_order(tmp_path, told):
    path = tmp_path / "metrics.jsonl"
    files = LineFiles(told.append)
    files.append(path, ["1\n"])
    path.rename(tmp_path / "before")
    path.mkdir()
    files.append(path, ["2\n"])
    files.append(path, ["3\n"])
    assert len(told) == 1
    assert str(path) in told[0]
    assert os.strerror(errno.EISDIR) in told[0]
    path.rmdir()
    (tmp_path / "before").rename(path)
    files.append(path, ["4\n"])
    assert path.read_text() == "1\n2\n3\n4\n"
    assert len(told) == 2
    files.close()
    assert len(told) == 2


def test_what_is_never_written_is_counted_at_the_end(tmp_path, told):
    path = tmp_path / "metrics.jsonl"
    path.mkdir()
    files = LineFiles(told.append, most=4)
    files.append(path, ["1\n", "2\n", "3\n"])
    files.close()
    assert len(told) == 2
    assert "3 lines" in told[-1]
    assert os.strerror(errno.EISDIR) in told[-1]


def test_what_is_lost_for_lack_of_room_is_counted_though_the_rest_is_written(tmp_path, told):
    path = tmp_path / "metrics.jsonl"
    path.mkdir()
    files = LineFiles(told.append, most=4)
    files.append(path, ["1\n", "2\n", "3\n"])
    path.rmdir()
    files.close()
    assert path.read_text() == "1\n2\n"
    assert "1 line" in told[-1]


def test_a_full_disk_leaves_no_half_line(tmp_path, told):
    with small_file_system(tmp_path / "disk", "64k") as grow:
        path = tmp_path / "disk" / "metrics.jsonl"
        files = LineFiles(told.append)
        lines = [f"{number} {'x' * 1000}\n" for number in range(100)]
        for line in lines[:90]:
            files.append(path, [line])
        whole = path.read_text().splitlines(keepends=True)
        assert whole == lines[: len(whole)]
        assert len(whole) < 90
        assert os.strerror(errno.ENOSPC) in told[0]
        grow("1m")
        files.append(path, lines[90:])
        assert path.read_text().splitlines(keepends=True) == lines


def test_a_run_folder_that_is_gone_ends_no_run(tmp_path, told):
    folder = RunFolder(tmp_path / "run", told.append)
    folder.path.mkdir()
    folder.steps([{"step": 1}])
    shutil.rmtree(folder.path)
    folder.steps([{"step": 2}])
    folder.ranks([{"step": 2}])
    folder.evaluation({"step": 2})
    folder.close()
    assert len(told) == 6
