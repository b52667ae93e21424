"""Sequences of file operations: all ranks read, and rank 0 writes, the same as a serial run."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from samestep.autopilot.files.file_calls import redirected
from support.file_sequences import Switch, run_interleaved, without_order

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
    st.lists(st.booleans(), max_size=60),
    st.lists(st.booleans(), max_size=60),
)
def test_all_ranks_read_the_same_as_a_serial_run(switch, items, sequence, turns, interruptions):
    base = Path(tempfile.mkdtemp(prefix="sequence-"))
    try:
        first = [("d", "folder", ""), ("e", "folder", "")]
        serial, main, other, (expected, left) = run_interleaved(
            switch, base, first + items, [*sequence, *LOOK_AT_ALL], turns, interruptions
        )
        for done, one, two, three in zip([*sequence, *LOOK_AT_ALL], serial, main, other, strict=True):
            assert without_order(two) == without_order(one), ("rank 0", done)
            assert three == two, ("rank 1", done)
        assert left == expected
    finally:
        shutil.rmtree(base)


def test_all_ranks_read_the_same_in_shared_memory(switch):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as base:
        items, sequence = [("a", "file", "64")], [("rewrite", "a"), ("append", "log", "1"), *LOOK_AT_ALL]

        serial, main, other, (expected, left) = run_interleaved(
            switch, Path(base), items, sequence, turns=[0, 0]
        )

        assert other == main == serial
        assert left == expected


@pytest.mark.parametrize(
    "sequence",
    [
        [("rename", "a", "b"), ("write", "a", "new")],
        [("rmtree", "a"), ("patch", "a", "1")],
        [("rmtree", "a"), ("rename", "a", "c")],
        [("rmdir", "d"), ("write", "d", "new")],
        [("rename", "d", "e"), ("rmdir", "e")],
    ],
    ids=lambda sequence: "-".join(operation[0] for operation in sequence),
)
@pytest.mark.parametrize("steps", [1, 2])
def test_rank_0_may_be_ahead_between_any_two_reads(switch, sequence, steps):
    items = [("d", "folder", ""), ("e", "folder", ""), ("a", "file", "64"), ("b", "file", "1\n")]
    for reads in range(16):
        with tempfile.TemporaryDirectory() as base:
            interruptions = [False] * reads + [True] * steps

            serial, main, other, (expected, left) = run_interleaved(
                switch, Path(base), items, sequence, turns=[], interruptions=interruptions
            )

            assert other == main == serial, reads
            assert left == expected
