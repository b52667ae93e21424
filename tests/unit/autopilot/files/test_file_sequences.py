"""Sequences of file operations give the same results in an overlay, and change no file below it."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from samestep.autopilot.files.file_calls import redirected
from support.file_sequences import Switch, run_in_overlay, without_order

PATHS = ["a", "b", "c", "d", "e", "d/a", "d/b", "d/s", "d/s/a", "e/a", "e/b", "e/s", "l", "l/a", "d/l"]
FLAGS = [
    os.O_RDONLY,
    os.O_WRONLY,
    os.O_RDWR | os.O_CREAT,
    os.O_WRONLY | os.O_APPEND,
    os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
    os.O_WRONLY | os.O_CREAT | os.O_EXCL,
]
path = st.sampled_from(PATHS)
folder = st.sampled_from(["", "d", "e", "d/s", "l", "e/s"])
text = st.sampled_from(["1", "22\n", "333\n4\n", ""])
target = st.sampled_from(["a", "d", "../a", "d/a", "b", "e", "nowhere", "../d", "s", "l", "."])
item = st.one_of(
    st.tuples(path, st.just("file"), text),
    st.tuples(st.sampled_from(["d", "e", "d/s", "e/s", "c"]), st.just("folder"), st.just("")),
    st.tuples(st.sampled_from(["l", "d/l", "c", "e/b"]), st.just("link"), target),
)


def operation(name, *arguments):
    return st.tuples(st.just(name), *arguments)


operations = st.one_of(
    *(
        operation(name, path, text)
        for name in ("write", "append", "make_new", "patch", "raw", "replace_by_new", "feed", "tar")
    ),
    *(
        operation(name, path)
        for name in ("read", "count", "remove", "mkdir", "rmdir", "rmtree", "readlink", "ask", "rewrite")
    ),
    *(operation(name, path) for name in ("makedirs", "hold", "let_go", "read", "ask")),
    *(operation(name, path, path) for name in ("rename", "copy", "copytree", "move", "link", "same")),
    operation("rename", path, path),
    operation("low", path, st.sampled_from(FLAGS), text),
    operation("symlink", target, path),
    operation("truncate", path, st.integers(0, 6)),
    operation("chmod", path, st.sampled_from([0o600, 0o644, 0o755])),
    *(operation(name, folder) for name in ("listdir", "scandir", "walk", "listdir", "listdir")),
    operation("glob", st.sampled_from(["*", "*/*", "d/*", "**/a", "e/[ab]", "l/*"])),
)
LOOK_AT_ALL = [
    ("walk", ""),
    *(("ask", one) for one in PATHS),
    *(("read", one) for one in PATHS),
    ("listdir", ""),
]


@pytest.fixture(scope="module")
def switch():
    handler = Switch()
    with redirected(handler):
        yield handler


@settings(
    max_examples=int(os.environ.get("FILE_SEQUENCES", "100")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.lists(item, max_size=8),
    st.lists(operations, min_size=1, max_size=14),
)
def test_an_overlay_gives_the_results_of_the_files_themselves(switch, items, sequence):
    base = Path(tempfile.mkdtemp(prefix="sequence-"))
    try:
        first = [("d", "folder", ""), ("e", "folder", "")]
        operations = [*sequence, *LOOK_AT_ALL]
        plain, covered, (before, after) = run_in_overlay(switch, base, first + items, operations)
        for done, one, other in zip(operations, plain, covered, strict=True):
            assert without_order(other) == without_order(one), done
        assert before == after
    finally:
        shutil.rmtree(base)


def test_files_in_shared_memory_are_in_the_overlay_too(switch):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as base:
        items, sequence = [("a", "file", "64")], [("rewrite", "a"), ("append", "log", "1"), *LOOK_AT_ALL]

        plain, covered, (before, after) = run_in_overlay(switch, Path(base), items, sequence)

        assert without_order(covered) == without_order(plain)
        assert before == after
