"""The report of a failed write has the file and the reason."""

import errno
import os

import pytest
import torch

from samestep.launch.local.hosting import ending_of
from samestep.launch.local.write_failure import write_failure
from support.systems import small_file_system


def error_of(act):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which one depends on torch
        act()
    return caught.value


def test_the_report_of_a_full_disk_has_the_file(tmp_path):
    with small_file_system(tmp_path / "disk", "64k"):
        weights, lines = tmp_path / "disk" / "weights.pt", tmp_path / "disk" / "lines.txt"

        def save():
            torch.save({"w": torch.zeros(1 << 16)}, weights)

        def save_open():
            with weights.open("wb") as file:
                torch.save({"w": torch.zeros(1 << 16)}, file)

        def write():
            with lines.open("w") as stream:
                stream.write("x" * (1 << 20))
                stream.flush()

        for act, path in ((save, weights), (save_open, weights), (write, lines)):
            error = error_of(act)
            assert write_failure(error) == f"cannot write to {path}: {os.strerror(errno.ENOSPC)}"
            assert ending_of(error).unwritten == write_failure(error)


def test_a_failed_write_is_found_as_the_cause_of_another_error_and_other_errors_are_none():
    def chained():
        try:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), "/data/file")
        except OSError as error:
            raise RuntimeError("the logger failed") from error

    assert write_failure(error_of(chained)) == f"cannot write to /data/file: {os.strerror(errno.EROFS)}"
    assert write_failure(FileNotFoundError(errno.ENOENT, "no", "/data/file")) == ""
    assert write_failure(ValueError("inline_container")) == ""
