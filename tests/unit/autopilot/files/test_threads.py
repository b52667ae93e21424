"""Threads of one rank that access files at the same time."""

import fcntl
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from samestep.autopilot.files.file_calls import redirected
from samestep.autopilot.files.file_lock import locked
from samestep.autopilot.files.folder_listings import ChangedFolders, ReplayedListings
from samestep.autopilot.files.journal import Journal
from samestep.autopilot.files.kept_originals import OriginalKeeper
from samestep.autopilot.files.overlay_files import Overlay

pytestmark = pytest.mark.usefixtures("_frequent_switches")

THREADS = 6


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


def test_a_process_that_is_forked_meanwhile_does_not_keep_the_lock(tmp_path):
    lock, (ends, end) = str(tmp_path / "lock"), os.pipe()
    with locked(lock):
        child = os.fork()
        if not child:
            os.close(end)
            os.read(ends, 1)
            os._exit(0)
    os.close(ends)
    with open(lock, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(end)
    os.waitpid(child, 0)


def test_a_reader_waits_for_the_second_of_two_renames_that_run_at_the_same_time(common):
    writer, reader = Journal(common / "journal"), Journal(common / "journal")
    for _ in range(2):
        writer.append("renaming")
    writer.append("renamed", source="/a", target="/b")
    found = []

    def read():
        reader.refresh()
        found.append(reader.place_of("/c"))

    waiting = threading.Thread(target=read)
    waiting.start()
    waiting.join(0.2)
    writer.append("renamed", source="/c", target="/d")
    waiting.join()
    assert found == ["/d"]


def test_threads_that_list_a_folder_use_no_listing_of_the_main_thread(common):
    writer, reader = Journal(common / "journal"), Journal(common / "journal")
    listings = ReplayedListings(reader, patience_s=0.0)
    orders = [["a", "b"], ["b", "a"]]
    for is_main, names in zip((True, False), orders, strict=True):
        writer.append("listed", live="/f", main=is_main, names=names)
    reader.refresh()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(listings.ordered, "/f", ["a", "b"]).result() == orders[1]
    assert listings.ordered("/f", ["a", "b"]) == orders[0]


def test_threads_that_list_a_changing_folder_do_not_wait_for_the_same_names(common):
    writer, reader = Journal(common / "journal"), Journal(common / "journal")
    listings = ReplayedListings(reader, pause=lambda: pytest.fail("waits"))
    for number in range(THREADS):
        writer.append("listed", live="/f", main=False, names=["a", f"of rank 0: {number}"])
    reader.refresh()
    found = in_threads(lambda number: listings.ordered("/f", [f"of rank 1: {number}", "a"]))
    assert found == [["a", f"of rank 1: {number}"] for number in range(THREADS)]


def _append(file, text):
    with open(file, "a") as opened:
        opened.write(text)
