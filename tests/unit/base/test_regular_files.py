"""A named file is read completely if it is regular and small enough; a read never blocks."""

import os

import pytest

from samestep.base import regular_files
from samestep.base.regular_files import read_bytes, read_lines, read_text
from support.fuzz_reader import ODD_FILES, put_odd

IS_ROOT = os.geteuid() == 0


@pytest.mark.parametrize("kind", ODD_FILES)
def test_paths_without_a_readable_regular_file_are_an_error_at_once(tmp_path, kind):
    if kind == "unreadable" and IS_ROOT:
        return  # root may read everything
    path = tmp_path / "file"
    put_odd(path, kind)

    with pytest.raises(OSError, match=r".") as caught:
        read_bytes(path, most=100)

    assert caught.value.strerror


def test_a_file_is_read_up_to_its_limit_and_not_beyond(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)

    assert read_bytes(path, most=100) == b"x" * 100
    with pytest.raises(OSError, match=r"."):
        read_bytes(path, most=99)


def test_a_file_of_size_0_is_read_up_to_the_limit():
    assert b"Name:" in read_bytes("/proc/self/status", most=1 << 16)
    with pytest.raises(OSError, match=r"."):
        read_bytes("/proc/self/status", most=10)


def test_bytes_that_are_no_text_are_refused_or_replaced(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"a\xff\n")

    assert read_text(path, errors="replace") == "a\ufffd\n"
    assert list(read_lines(path)) == ["a\ufffd\n"]
    with pytest.raises(UnicodeDecodeError):
        read_text(path)


def test_a_line_above_the_limit_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(regular_files, "LINE_BYTES", 10)
    path = tmp_path / "file"
    path.write_bytes(b"a\n" + b"b" * 100)
    lines = read_lines(path)

    assert next(lines) == "a\n"
    with pytest.raises(OSError, match="2"):
        next(lines)
