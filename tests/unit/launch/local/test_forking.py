import pytest

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
    assert fork_is_safe()
    monkeypatch.setattr("samestep.launch.local.forking.driver_is_open", lambda: True)
    assert not fork_is_safe()


def test_a_process_with_threads_of_autograd_is_not_forked(tmp_path, monkeypatch):
    """As torch's build with CUDA starts them on a machine without GPUs, in a compilation."""
    for number, name in enumerate(("python", "pt_autograd_0")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "comm").write_text(f"{name}\n")
    (tmp_path / "ended").mkdir()
    assert autograd_has_threads(tmp_path)
    assert not autograd_has_threads()

    monkeypatch.setattr("samestep.launch.local.forking.threading.active_count", lambda: 1)
    assert fork_is_safe()
    monkeypatch.setattr("samestep.launch.local.forking.autograd_has_threads", lambda: True)
    assert not fork_is_safe()
