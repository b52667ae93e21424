"""Ranks of one host that cannot share memory use the process group, and one rank reports why."""

import ctypes
import io
import multiprocessing
import os
import signal
from contextlib import redirect_stderr
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist

from samestep.base.place import Place
from samestep.ranks.collectives import shared_memory
from samestep.ranks.collectives.shared_memory import on_one_host
from samestep.ranks.world.process_group import ProcessGroupWorld
from support.systems import missing, small_file_system

CLONE_NEWPID, PR_SET_PDEATHSIG = 0x20000000, 1


def with_file_system(world, folder):
    """Return the kinds of worlds with another shared-memory file system, the reports, and a sum."""
    reported = io.StringIO()
    with patch.object(shared_memory, "FILE_SYSTEM", Path(folder)), redirect_stderr(reported):
        worlds = [on_one_host(world) for _ in range(2)]
    tensor = torch.ones(3)
    worlds[0].all_reduce(tensor)
    return [type(one).__name__ for one in worlds], reported.getvalue(), tensor.tolist()


def test_a_missing_file_system_is_reported_once_by_one_rank(processes, tmp_path):
    folder = tmp_path / "none"
    (kinds, reported, total), (others, nothing, _) = processes.run(with_file_system, 2, str(folder))

    assert kinds == others == ["ProcessGroupWorld"] * 2
    assert total == [2.0] * 3
    assert reported.count("\n") == 1
    assert f"{folder}: No such file or directory" in reported
    assert nothing == ""


def test_a_file_system_that_is_too_small_is_reported_with_its_size(processes, tmp_path):
    folder = tmp_path / "small"
    with small_file_system(folder, "3m"):
        (kinds, reported, _), (others, _, _) = processes.run(with_file_system, 2, str(folder))

        assert kinds == others == ["ProcessGroupWorld"] * 2
        assert f"{folder} has 3 MiB free of 3 MiB, and 4" in reported
        assert list(folder.iterdir()) == []
        held = os.statvfs(folder)
        assert held.f_bavail == held.f_blocks


def in_own_pid_namespace(pipe, rank, store):
    """Run a rank that can access no other process, as in a container."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWPID):
        pipe.send(os.strerror(ctypes.get_errno()))
        return
    if os.fork():
        os.wait()
        return
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    world = ProcessGroupWorld(Place(rank=rank, size=2, launcher="test"), torch.device("cpu"))
    reported = io.StringIO()
    with redirect_stderr(reported):
        kind = type(on_one_host(world)).__name__
    world.barrier()
    pipe.send((os.getpid(), kind, reported.getvalue()))
    os._exit(0)


def test_ranks_in_different_pid_namespaces_are_reported(tmp_path):
    context, ranks = multiprocessing.get_context("fork"), []
    for rank in range(2):
        ours, theirs = context.Pipe()
        process = context.Process(target=in_own_pid_namespace, args=(theirs, rank, tmp_path / "store"))
        process.start()
        theirs.close()
        ranks.append((process, ours))
    found = [pipe.recv() for _, pipe in ranks]
    for process, pipe in ranks:
        process.join()
        process.close()
        pipe.close()
    if isinstance(found[0], str):
        missing("unshare", f"no space of process ids can be made here: {found[0]}")

    (pid, kind, reported), (other, kind_of_other, nothing) = found
    assert (pid, other, kind, kind_of_other) == (1, 1, "ProcessGroupWorld", "ProcessGroupWorld")
    assert "rank 1 has no access" in reported
    assert nothing == ""
