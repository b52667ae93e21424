"""Lines that cannot be written are kept in memory, and reported once."""

import errno
import os
import shutil

import pytest

from samestep.training.output.run_folder import LineFiles, RunFolder
from support.systems import small_file_system


@pytest.fixture
def messages():
    return []


def test_lines_are_kept_in_order_until_the_file_can_be_written(tmp_path, messages):
    path = tmp_path / "metrics.jsonl"
    files = LineFiles(messages.append)
    files.append(path, ["1\n"])
    path.rename(tmp_path / "before")
    path.mkdir()
    files.append(path, ["2\n"])
    files.append(path, ["3\n"])
    assert len(messages) == 1
    assert str(path) in messages[0]
    assert os.strerror(errno.EISDIR) in messages[0]
    path.rmdir()
    (tmp_path / "before").rename(path)
    files.append(path, ["4\n"])
    assert path.read_text() == "1\n2\n3\n4\n"
    assert len(messages) == 2
    files.close()
    assert len(messages) == 2


def test_lines_that_are_never_written_are_counted_at_the_end(tmp_path, messages):
    path = tmp_path / "metrics.jsonl"
    path.mkdir()
    files = LineFiles(messages.append, most=4)
    files.append(path, ["1\n", "2\n", "3\n"])
    files.close()
    assert len(messages) == 2
    assert "3 lines" in messages[-1]
    assert os.strerror(errno.EISDIR) in messages[-1]


def test_lines_beyond_the_limit_are_counted_and_the_rest_is_written(tmp_path, messages):
    path = tmp_path / "metrics.jsonl"
    path.mkdir()
    files = LineFiles(messages.append, most=4)
    files.append(path, ["1\n", "2\n", "3\n"])
    path.rmdir()
    files.close()
    assert path.read_text() == "1\n2\n"
    assert "1 line" in messages[-1]


def test_a_full_disk_leaves_no_partial_line(tmp_path, messages):
    with small_file_system(tmp_path / "disk", "64k") as grow:
        path = tmp_path / "disk" / "metrics.jsonl"
        files = LineFiles(messages.append)
        lines = [f"{number} {'x' * 1000}\n" for number in range(100)]
        for line in lines[:90]:
            files.append(path, [line])
        whole = path.read_text().splitlines(keepends=True)
        assert whole == lines[: len(whole)]
        assert len(whole) < 90
        assert os.strerror(errno.ENOSPC) in messages[0]
        grow("1m")
        files.append(path, lines[90:])
        assert path.read_text().splitlines(keepends=True) == lines


def test_a_deleted_run_folder_does_not_end_a_run(tmp_path, messages):
    folder = RunFolder(tmp_path / "run", messages.append)
    folder.path.mkdir()
    folder.steps([{"step": 1}])
    shutil.rmtree(folder.path)
    folder.steps([{"step": 2}])
    folder.ranks([{"step": 2}])
    folder.evaluation({"step": 2})
    folder.close()
    assert len(messages) == 6
