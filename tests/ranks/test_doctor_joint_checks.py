"""Joint checks of the doctor's ranks report the run folder, joining, and failures."""

import errno
import fcntl
import threading
import time
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from samestep.base.errors import WorldError
from samestep.doctor import checks, run_folder
from samestep.doctor.checks import CHECKS, Options, any_stuck, run_check, run_checks
from samestep.doctor.context import ResultStore
from samestep.ranks.world.protocol import SoloWorld
from support.stores import Memory

SHARED, JOINING = (check for check in CHECKS if check.joint)


def folder_findings(*folders):
    """Return each rank's findings about its run folder."""
    board, parts = ResultStore(Memory()), {}

    def rank_main(rank):
        parts[rank] = run_folder.compare_folders(board, folders[rank], rank=rank, size=len(folders))

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(len(folders))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [[finding.text for finding in parts[rank].findings] for rank in range(len(folders))]


def test_a_common_folder_has_no_findings_and_is_unchanged(tmp_path):
    assert folder_findings(tmp_path, tmp_path, tmp_path) == [[], [], []]
    assert list(tmp_path.iterdir()) == []


def test_a_rank_with_another_folder_reports_it(tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "_SHOW_S", 0.05)
    (tmp_path / "own").mkdir()
    first, second, (text,) = folder_findings(tmp_path, tmp_path, tmp_path / "own")
    assert first == second == []
    assert "own is not the folder that rank 0 sees under this name" in text


def test_a_lock_that_does_not_exclude_other_ranks_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    _, (text,) = folder_findings(tmp_path, tmp_path)
    assert "does not keep this rank out" in text


def test_a_folder_that_rank_0_cannot_write_blocks_no_rank(tmp_path, monkeypatch):
    def refuse(**_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("tempfile.NamedTemporaryFile", refuse)
    assert folder_findings(tmp_path, tmp_path) == [[], []]  # the check of the run folder has reported it


@pytest.fixture
def joined(monkeypatch):
    """Let `join` give a certain world, or raise a certain error."""

    def give(world=None, error=None):
        @contextmanager
        def join(**_):
            if error is not None:
                raise error
            yield world

        monkeypatch.setattr("samestep.ranks.world.join.join", join)

    return give


def test_a_correct_sum_is_reported_with_its_time(joined):
    joined(SoloWorld())
    part = checks.joining(None)
    assert part.findings == ()
    assert "a sum of 1 MiB over all takes" in part.rows[0][1]


def test_a_wrong_sum_is_a_finding_that_hurts(joined):
    class Lossy(SoloWorld):
        def all_reduce(self, tensor, *, op="sum"):
            tensor[7] = torch.nan

    joined(Lossy())
    (finding,) = checks.joining(None).findings
    assert finding.hurts
    assert "wrong in 1 of" in finding.text


def test_the_reason_of_a_failed_join_is_reported_without_the_rank(joined):
    error = WorldError("rank 3 of 4 could not connect to the others: no such interface\nat 0x0")
    error.__cause__ = RuntimeError("no such interface\nat 0x0")
    joined(error=error)
    (finding,) = checks.joining(None).findings
    assert finding.text == "The ranks cannot join each other as a training does: no such interface"


def test_a_join_that_hangs_is_reported(monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(checks, "_sum", lambda _: release.wait())
    try:
        (finding,) = run_check(replace(JOINING, timeout_s=0.01), None).findings
        assert "did not end within 0.01 s" in finding.text
    finally:
        release.set()
        while any_stuck():
            time.sleep(0.001)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            RuntimeError("CUDA driver version is insufficient\nmore"),
            "failed: CUDA driver version is insufficient",
        ),
        (TimeoutError("no answer"), "a driver hangs"),
    ],
)
def test_a_failed_detection_of_devices_is_a_finding(error, says, monkeypatch):
    def fail():
        raise error

    monkeypatch.setattr("samestep.doctor.checks.facts_here", fail)
    results = run_checks({}, Options(), checks=())
    ((_, finding),) = results.report.findings
    assert says in finding.text
    assert results.agree_on_exit_code() == 1
