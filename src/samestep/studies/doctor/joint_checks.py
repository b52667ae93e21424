"""Runs the joint checks of all ranks: do they see one run folder, and can they join and sum?"""

import fcntl
import os
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import torch

from samestep.base import env
from samestep.base.errors import Error
from samestep.base.units import seconds_text
from samestep.ranks.world.join import join
from samestep.studies.doctor.check_result import Finding, Part
from samestep.studies.doctor.links import Board
from samestep.studies.doctor.time_limit import within

_VALUES = 2**18
_TIMES = 5
# A network file system may take this long to show what another host has written.
_SHOW_S = 5.0
_JOIN_S = 15.0
_FOLDER_S = 15.0
_SUM_S = 2 * _JOIN_S + 10.0


def one_folder(board: Board, folder: Path, *, rank: int, size: int) -> Part:
    """Check that rank 0's file is in the run folder, and that its lock excludes this rank.

    Args:
        board: the store of the ranks.
        folder: the run folder, or the nearest existing one above it.
        rank: this rank.
        size: number of ranks of the job.
    """
    deadline = time.monotonic() + _FOLDER_S
    if rank == 0:
        return _show(board, folder, size, deadline)
    name = board.read("folder", deadline=deadline)
    part = _seen(folder, name) if name else Part()
    board.post(f"folder/{rank}", "looked")
    return part


def _show(board: Board, folder: Path, size: int, deadline: float) -> Part:
    """Create a file, hold its lock, and wait until all other ranks have checked it."""
    try:
        with tempfile.NamedTemporaryFile(prefix=".samestep-doctor-", dir=folder) as file:
            with suppress(OSError):  # `folder` has a finding for it
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fsync(file.fileno())
            board.post("folder", Path(file.name).name)
            for rank in range(1, size):
                board.read(f"folder/{rank}", deadline=deadline)
    except OSError:
        board.post("folder", "")
    return Part()


def _seen(folder: Path, name: str) -> Part:
    pause, begin = threading.Event(), time.monotonic()
    while name not in os.listdir(folder):  # noqa: PTH208 - a listing refreshes the cache of file servers
        if time.monotonic() - begin > _SHOW_S:
            text = (
                f"{folder} is not the folder that rank 0 sees under this name: a file of rank 0 is missing. "
                "Checkpoints and results need a file system that all nodes share; choose a folder on it."
            )
            return Part(findings=(Finding(text=text),))
        pause.wait(0.1)
    try:
        with (folder / name).open("rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # the lock excludes this rank, as it must
        return Part()
    text = (
        f"A lock that rank 0 holds in {folder} does not keep this rank out: two runs in one folder can write "
        "at the same time. Mount it with locks that all nodes see (NFS: lockd; Lustre: -o flock)."
    )
    return Part(findings=(Finding(text=text),))


def one_sum() -> Part:
    """Join the other ranks as a training does, and sum numbers over all of them."""
    begin = time.perf_counter()
    try:
        return within(_SUM_S, lambda: _sum(begin))
    except Error as error:
        reason = error.__cause__ or error  # its text has no rank, so that equal findings of ranks are merged
        text = f"The ranks cannot join each other as a training does: {str(reason).splitlines()[0]}"
    except TimeoutError:
        text = (
            f"Joining the other ranks, or the first sum over all, did not end within {_SUM_S:g} s. "
            "See the other findings; with NCCL, set NCCL_DEBUG=INFO and read the output of its ranks."
        )
    except RuntimeError as error:  # raised by torch in a collective
        text = f"The first sum over all ranks failed: {str(error).splitlines()[0]}"
    return Part(findings=(Finding(text=text),))


def _sum(begin: float) -> Part:
    with env.exported({"SAMESTEP_BANNER": "0"}), join(timeout_s=_JOIN_S) as world:
        joined_s = time.perf_counter() - begin
        size = world.place.size
        best = float("inf")
        for _ in range(_TIMES):
            numbers = torch.full((_VALUES,), float(world.place.rank + 1), device=world.device)
            world.barrier()
            start = time.perf_counter()
            world.all_reduce(numbers)
            wrong = int((numbers != size * (size + 1) / 2).sum().item())
            best = min(best, time.perf_counter() - start)
    findings = []
    if wrong:
        text = f"A sum over all ranks is wrong in {wrong} of {_VALUES} places. Do not train here; report it."
        findings.append(Finding(text=text))
    text = f"joined in {seconds_text(joined_s)}; a sum of 1 MiB over all takes {seconds_text(best)}"
    return Part(rows=(("together", f"{text}{'' if wrong else ', and is right'}"),), findings=tuple(findings))
