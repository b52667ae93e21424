import errno
import os
import resource
from contextlib import nullcontext

import pytest

from samestep.base.errors import UsageError
from samestep.base.place import Place
from samestep.launch.local import forking
from samestep.launch.local.child import Start, not_started
from samestep.launch.local.forking import autograd_has_threads, fork_is_safe, release_compute_threads

LINE = "7f0000000000-7f0000001000 r-xp 00000000 fe:01 4242                       {}\n"


@pytest.mark.parametrize("suffix", ["", " (deleted)"])
def test_threads_of_a_library_that_cannot_be_loaded_are_not_released(tmp_path, suffix):
    maps = tmp_path / "maps"
    library = tmp_path / "a folder" / "libgomp.so.1"
    maps.write_text(LINE.format("[heap]") + LINE.format(f"{library}{suffix}"))

    assert release_compute_threads(maps) is False


def test_compute_libraries_are_recognized_by_their_file_name_only(tmp_path):
    maps = tmp_path / "maps"
    maps.write_text(LINE.format("/no such/comp folder.so/libc.so.6") + "7f00-7f01 rw-p 0 0:0 0\n")

    assert release_compute_threads(maps) is True


def test_a_process_with_an_open_driver_is_not_forked(monkeypatch):
    monkeypatch.setattr("samestep.launch.local.forking.threading.active_count", lambda: 1)
    monkeypatch.setattr("samestep.launch.local.forking.autograd_has_threads", lambda: False)
    assert fork_is_safe()
    monkeypatch.setattr("samestep.launch.local.forking.driver_is_open", lambda: True)
    assert not fork_is_safe()


def test_a_process_with_threads_of_autograd_is_not_forked(tmp_path, monkeypatch):
    """As torch's build with CUDA starts them on a machine without GPUs, in a compilation."""
    (tmp_path / "ended").mkdir()
    for number, name in enumerate(("python", "pt_autograd_0")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "comm").write_text(f"{name}\n")
        assert autograd_has_threads(tmp_path) == (name != "python")

    monkeypatch.setattr("samestep.launch.local.forking.threading.active_count", lambda: 1)
    monkeypatch.setattr("samestep.launch.local.forking.autograd_has_threads", lambda: False)
    assert fork_is_safe()
    monkeypatch.setattr("samestep.launch.local.forking.autograd_has_threads", lambda: True)
    assert not fork_is_safe()


INFINITY = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("now", "workers", "then"),
    [
        ((1024, 4096), 2, None),
        ((256, 4096), 100, 700),
        ((256, 512), 100, 512),
        ((INFINITY, INFINITY), 100, None),
        ((256, INFINITY), 100, 700),
    ],
)
def test_the_soft_limit_is_raised_for_the_workers_up_to_the_hard_one_and_restored(
    monkeypatch, now, workers, then
):
    limits = [now]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: limits.append(limit))

    before = forking.raise_file_limit(workers)

    if then is None:
        assert (before, limits) == (None, [now])
        return
    soft, hard = limits[-1]
    assert (before, hard) == (now, now[1])
    assert soft >= then
    forking.restore_file_limit(before)
    assert limits[-1] == now


@pytest.mark.parametrize(("workers", "is_refused"), [(1, False), (2, True)])
def test_a_limit_below_what_ranks_need_is_refused(monkeypatch, workers, is_refused):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (20, 20))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)

    with pytest.raises(UsageError, match="20") if is_refused else nullcontext():
        forking.raise_file_limit(workers)


def test_files_that_are_already_closed_are_skipped():
    read, write = os.pipe()
    os.close(write)

    forking.close_files([read, write])

    with pytest.raises(OSError, match="Bad file"):
        os.fstat(read)


@pytest.mark.parametrize(
    ("number", "words"), [(errno.EMFILE, "ulimit -n"), (errno.EAGAIN, "ulimit -u"), (errno.EACCES, "denied")]
)
def test_the_error_of_a_worker_that_cannot_be_started_has_its_rank_and_a_remedy(number, words):
    start = Start(place=Place(rank=3, size=4, local_rank=3, local_size=4), variables={})
    message = not_started(start, OSError(number, os.strerror(number)))

    assert "rank 3" in message
    assert words in message
