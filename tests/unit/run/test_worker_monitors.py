"""The last line that a worker printed is kept for its clock file, and errors of that file are reported."""

import errno
import io
import os
import sys

import pytest

from samestep.base import event_record
from samestep.base.place import Place
from samestep.launch.local.child import as_it_is
from samestep.launch.local.hosting import Ending
from samestep.observe.clock_file import ClockFile, ClockOptions
from samestep.run.worker_monitors import _checked, _last_line, clocked, recorded


def test_the_last_line_on_stderr_is_stored_and_the_stream_is_restored(capsys):
    attributes = dict(vars(sys.stderr))
    with _last_line(sys.stderr) as last_line:
        print("usage: t.py", file=sys.stderr)
        print("t.py: error: no --lr\n", file=sys.stderr)

    assert last_line() == "t.py: error: no --lr"
    assert vars(sys.stderr) == attributes
    assert capsys.readouterr().err == "usage: t.py\nt.py: error: no --lr\n\n"


def test_without_output_the_last_line_is_empty():
    with _last_line(io.TextIOWrapper(io.BytesIO())) as last_line:
        assert last_line() == ""


def test_a_stream_that_cannot_be_patched_has_an_empty_last_line():
    class Fixed:
        __slots__ = ()

        def write(self, text):
            return len(text)

    with _last_line(Fixed()) as last_line:
        assert last_line() == ""


def full(fd, data):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_reported_at_the_end_and_raises_no_error_in_the_script(tmp_path, monkeypatch, capsys):
    file = ClockFile(ClockOptions(folder=tmp_path), Place(), "serial")
    file.write([{"step": 1}])
    assert _checked(file) == 0
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        file.write([{"step": 2}])
    file.write([{"step": 3}])  # no gap

    assert file.path.read_text() == '{"step": 1}\n'
    assert _checked(file) == 2
    (line,) = capsys.readouterr().err.splitlines()
    for name in (f"--clock {tmp_path}", "rank-0.jsonl", os.strerror(errno.ENOSPC)):
        assert name in line


@pytest.mark.parametrize(("ended", "exit_code"), [(Ending(), 2), (Ending(exit_code=7), 7)])
def test_a_program_does_not_exit_with_0_if_its_steps_are_not_written(tmp_path, monkeypatch, ended, exit_code):
    monkeypatch.setattr(os, "write", full)
    clocking = ClockOptions(folder=tmp_path, steps=4)
    ending = clocked(lambda: ended, around=as_it_is, clocking=clocking, kind="serial", size=1)
    assert ending.exit_code == exit_code


@pytest.mark.parametrize(("size", "expected"), [(1, 3), (4, 4)])
def test_a_worker_that_the_script_has_started_records_their_number(tmp_path, monkeypatch, size, expected):
    monkeypatch.setattr(event_record, "temporary_directory", lambda: tmp_path)
    monkeypatch.setattr(event_record, "_here", event_record._Here())
    for name, value in {"RANK": 2, "WORLD_SIZE": 3, "LOCAL_RANK": 2, "LOCAL_WORLD_SIZE": 3}.items():
        monkeypatch.setenv(name, str(value))
    found = []

    def run():
        found.extend(event_record.read_records(event_record.folder()))
        return Ending()

    recorded(run, around=as_it_is, size=size, script="train.py")

    (record,) = found
    assert (record.worker.rank, record.worker.size) == (2, expected)
    assert not event_record.folder().exists()
