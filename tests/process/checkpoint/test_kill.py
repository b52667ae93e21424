"""At whatever moment a process that writes checkpoints is killed, the newest complete one is valid."""

import itertools
import multiprocessing
import os
import shutil
import signal
import sys
from contextlib import closing

import torch

from samestep.base.record import IDENTITY_FILE
from samestep.training.checkpoint.checkpoint_schedule import Retention, Writer
from samestep.training.checkpoint.newest import checkpoints_in, newest_valid
from samestep.training.checkpoint.read import read
from samestep.training.checkpoint.save import SealedFile
from samestep.training.checkpoint.snapshot import FILES, Snapshot
from support.snapshots import same, write

EVENTS = {"open", "os.mkdir", "os.remove", "os.rename", "os.rmdir"}
RELATIVE = (".samestep", "step-", *FILES)
"""Beginnings of names that are looked up in an open folder."""


def made(step, seed):
    """Return a small snapshot that its seed identifies."""
    weights = {name: torch.full((1000,), float(seed)) for name in ("a", "b")}
    return Snapshot(weights, {"momentum": weights}, {"step": step, "seed": seed})


def save(writer, step, seed):
    writer.save(made(step, seed))


class KillAtMoment:
    """Kills this process at the `at`-th change of `folder`, or when a file has been written in part.

    What has been written is there without waiting for the disk: it is the process that dies, not the machine.
    """

    def __init__(self, folder, at):
        self.folder, self.left = str(folder), at
        sys.addaudithook(self.hook)
        self.write = SealedFile.write
        SealedFile.write = lambda file, data: self.half_of_a_file(file, data)
        os.fsync = self.moment

    def hook(self, event, arguments):
        name = os.fspath(arguments[0]) if isinstance(arguments[0], str | os.PathLike) else ""
        if event in EVENTS and name.startswith((self.folder, *RELATIVE)):
            self.moment()

    def half_of_a_file(self, file, data):
        begins = file.seal.bytes == 0
        count = self.write(file, data)
        if begins:
            file.flush()
            self.moment()
        return count

    def moment(self, _=None):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def replace_one_and_write_one(folder, at):
    with closing(Writer(folder, Retention(last=1, best=False))) as writer:
        KillAtMoment(folder, at)
        for step, seed in ((2, 20), (3, 3)):
            save(writer, step, seed)


def killed_at(folder, at):
    """Run the writer until moment `at`; return whether it was killed."""
    process = multiprocessing.get_context("forkserver").Process(
        target=replace_one_and_write_one, args=(folder, at)
    )
    process.start()
    process.join(60)
    code = process.exitcode
    process.close()
    assert code in {0, -signal.SIGKILL}
    return code != 0


def test_a_kill_at_any_moment_leaves_a_valid_newest_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)
    before = write(made(2, seed=2), tmp_path / "before" / "step-2").parent
    write(made(1, seed=1), before / "step-1")
    found = []
    for at in itertools.count(1):
        folder = tmp_path / f"killed-{at}"
        shutil.copytree(before, folder)
        killed = killed_at(folder, at)

        chosen = newest_valid(folder)
        assert all(read(path) for _, path in checkpoints_in(folder))
        seed = chosen.snapshot.state["seed"]
        assert chosen.refused == ()
        assert same(chosen.snapshot.model, made(1, seed).model)
        found.append(seed)
        with closing(
            Writer(folder, Retention())
        ) as writer:  # the run goes on: nothing is in its way, and nothing is left over
            save(writer, 9, seed=9)
        assert writer.failure is None
        assert {path.name for path in folder.iterdir()} == {
            IDENTITY_FILE,
            *(path.name for _, path in checkpoints_in(folder)),
        }
        shutil.rmtree(folder)
        if not killed:
            break

    assert list(dict.fromkeys(found)) == [2, 20, 3]
