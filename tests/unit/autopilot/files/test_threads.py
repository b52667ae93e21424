"""Threads of one rank that access files at the same time."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from samestep.autopilot.files.file_calls import redirected
from samestep.autopilot.files.folder_listings import ChangedFolders
from samestep.autopilot.files.journal import Journal
from samestep.autopilot.files.kept_originals import OriginalKeeper
from samestep.autopilot.files.overlay_files import Overlay

THREADS = 6


@pytest.fixture(autouse=True)
def _frequent_switches():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(function):
    with ThreadPoolExecutor(THREADS) as pool:
        return [*pool.map(function, range(THREADS))]


@pytest.fixture
def common(tmp_path):
    folder = tmp_path / "common"
    folder.mkdir()
    return folder


def test_a_thread_that_has_refreshed_a_journal_sees_all_lines_up_to_its_size(common):
    writer, reader = Journal(common / "journal"), Journal(common / "journal")
    lines = 400
    sizes = {}

    def read(number):
        if number == 0:
            for one in range(lines):
                writer.append("kept", live=f"/a/{one}", base=f"/a/{one}", at=f"/kept/{one}")
                sizes[one] = writer.size
            return True
        seen = 0
        while seen < lines:
            size = reader.refresh()
            while seen < lines and sizes.get(seen, size + 1) <= size:
                if reader.place_of(f"/a/{seen}") != f"/kept/{seen}":
                    return False
                seen += 1
        return True

    assert in_threads(read) == [True] * THREADS
    assert reader.size == writer.size


def test_threads_of_a_rank_append_to_one_file_from_before_the_run(tmp_path, common):
    for attempt in range(20):
        file = tmp_path / f"log{attempt}"
        file.write_text("before\n")
        with redirected(Overlay(tmp_path / f"overlay{attempt}", Journal(common / "journal"))):
            (tmp_path / f"overlay{attempt}").mkdir()
            in_threads(lambda number, file=file: _append(file, f"{number}\n"))
            seen = file.read_text()
        assert sorted(seen.split()) == sorted(["before", *map(str, range(THREADS))])
        assert file.read_text() == "before\n"


def test_threads_of_rank_0_change_one_file_and_its_original_is_kept(tmp_path, common):
    keeper = OriginalKeeper(Journal(common / "journal"), common)
    for attempt in range(20):
        file = tmp_path / f"log{attempt}"
        file.write_text("before\n")
        with redirected(keeper):
            in_threads(lambda number, file=file: _append(file, f"{number}\n"))
        assert len(file.read_text().split()) == 1 + THREADS
        journal = Journal(common / "journal")
        journal.refresh()
        with open(journal.place_of(str(file))) as kept:
            assert kept.read() == "before\n"


def test_a_folder_is_recorded_while_another_is_renamed():
    folders = ChangedFolders()

    def change(number):
        for one in range(300):
            if number % 2:
                folders.add(f"/{number}/{one}")
            else:
                folders.rename("/none", f"/other{one}")

    in_threads(change)
    assert all(f"/{number}/{one}" in folders for number in range(1, THREADS, 2) for one in range(300))


def _append(file, text):
    with open(file, "a") as opened:
        opened.write(text)
