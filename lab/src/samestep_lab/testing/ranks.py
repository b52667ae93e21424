"""Runs a function on all ranks, as threads or as processes, and returns the outcome of each."""

import faulthandler
import multiprocessing
import pickle
import platform
import re
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from linecache import getline
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from samestep.base.folders import owned_folder
from samestep.base.place import Place
from samestep.base.worker_records import frames_of
from samestep.ranks.hang.script_position import is_script
from samestep.ranks.world.process_group import ProcessGroupWorld
from samestep.ranks.world.protocol import SoloWorld, World
from samestep.ranks.world.thread_world import run_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of a task on one rank."""

    value: Any = None  # its return value
    error: str = ""  # the error it raised, as text; empty if none
    stuck: str = ""  # the line it was in at the timeout; empty if it ended


Task = Callable[[World], Any]
_PACKAGE = str(Path(__file__).parents[1])
_DEATH = "death-of-rank-"
"""Prefix of the files with the stacks of a process that died."""


def on_threads(task: Task, size: int, *, timeout_s: float) -> list[Outcome]:
    """Run a task on `size` ranks that are threads; return the outcomes."""
    outcomes = [Outcome()] * size
    threads: dict[int, int] = {}

    def rank_main(world: World) -> None:
        rank = world.place.rank
        threads[rank] = threading.get_ident()
        outcomes[rank] = _run(task, world)
        if outcomes[rank].error:
            raise _RankFailed(outcomes[rank].error)

    def main() -> None:
        with suppress(_RankFailed):
            run_ranks(rank_main, size, timeout_s=timeout_s) if size > 1 else rank_main(SoloWorld())

    runner = threading.Thread(target=main, name="ranks", daemon=True)
    runner.start()
    runner.join(2 * timeout_s)
    if not runner.is_alive():
        return outcomes
    stacks = [frames_of(threads.get(rank)) for rank in range(size)]
    return [
        Outcome(stuck=_where(stack)) if stack else outcome
        for stack, outcome in zip(stacks, outcomes, strict=True)
    ]


class _RankFailed(Exception):  # noqa: N818 - not an error of this module
    """Ends a rank whose error is recorded."""


def on_processes(
    tasks: Sequence[Task], size: int, *, timeout_s: float, group_timeout_s: float = 600.0
) -> list[list[Outcome]]:
    """Run tasks one after another on `size` processes with a Gloo group; return the outcomes.

    No task is started after one that failed on a rank.

    Args:
        tasks: each takes a world.
        size: number of ranks.
        timeout_s: maximum time of a task, in seconds.
        group_timeout_s: timeout of messages and collectives, in seconds.
    """
    context: Any = multiprocessing.get_context("fork" if platform.system() == "Linux" else "spawn")
    with owned_folder() as folder:
        store, ranks = folder / "store", []
        for rank in range(size):
            parent_end, rank_end = context.Pipe()
            process = context.Process(
                target=_serve,
                args=(rank_end, tasks, (rank, size), store, timeout_s, group_timeout_s),
                daemon=True,
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a warning about threads, which the ranks do not use
                process.start()
            rank_end.close()
            ranks.append((process, parent_end))
        try:
            return _collected([pipe for _, pipe in ranks], len(tasks), timeout_s, folder)
        finally:
            for process, pipe in ranks:
                pipe.close()
                process.kill()
                process.join()
                process.close()


def _collected(pipes: list[Connection], tasks: int, timeout_s: float, folder: Path) -> list[list[Outcome]]:
    collected: list[list[Outcome]] = []
    first_s = 60.0  # for startup and rendezvous
    for _ in range(tasks):
        outcomes: list[Outcome | None] = [None] * len(pipes)
        deadline = time.monotonic() + timeout_s + 5.0 + first_s
        first_s = 0.0
        while None in outcomes and time.monotonic() < deadline:
            waiting = [pipe for pipe, outcome in zip(pipes, outcomes, strict=True) if outcome is None]
            for pipe in wait(waiting, max(0.0, deadline - time.monotonic())):
                rank = pipes.index(pipe)  # type: ignore[arg-type]
                outcomes[rank] = _received(pipes[rank], folder / f"{_DEATH}{rank}")
        collected.append([outcome or Outcome(stuck="no answer") for outcome in outcomes])
        if any(outcome.error or outcome.stuck for outcome in collected[-1]):
            break
    return collected


def _received(pipe: Connection, death: Path) -> Outcome:
    try:
        outcome: Outcome = pickle.loads(pipe.recv_bytes())  # noqa: S301 - from a child of this process
    except (EOFError, ConnectionError):
        return Outcome(error=_died(death.read_text(encoding="utf-8") if death.is_file() else ""))
    return outcome


def _died(dump: str) -> str:
    """Return the error of a process that has died, from the stacks of its threads."""
    frames = re.findall(r'File "(.+)", line (\d+)', dump)
    line = next(((file, int(number)) for file, number in frames if _is_users(file)), None)
    if line is None:
        return "the process died"
    return (
        f"the process died at {line[0]}:{line[1]}: {getline(*line).strip()}. Gloo aborts a process that "
        "receives more bytes than its tensor has: give the receiver a tensor of the sender's shape and type"
    )


def _serve(
    pipe: Connection,
    tasks: Sequence[Task],
    rank_of: tuple[int, int],
    store: Path,
    timeout_s: float,
    group_timeout_s: float,
) -> None:
    """Run the tasks as one rank, and send their outcomes."""
    rank, size = rank_of
    faulthandler.enable((store.parent / f"{_DEATH}{rank}").open("w", encoding="utf-8"))
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=group_timeout_s),
    )
    dist.barrier()  # a rank whose tasks fail at once would end the connections that others still make
    place = Place(rank=rank, size=size, local_rank=rank, local_size=size, launcher="testing")
    world = ProcessGroupWorld(place, torch.device("cpu"))
    main = threading.get_ident()
    for task in tasks:

        def send_stuck() -> None:
            pipe.send_bytes(pickle.dumps(Outcome(stuck=_where(frames_of(main)))))

        alarm = threading.Timer(timeout_s, send_stuck)
        alarm.start()
        outcome = _run(task, world)
        alarm.cancel()
        pipe.send_bytes(pickle.dumps(outcome))
        if outcome.error:  # ends the connections, so that no rank waits for this one
            return


def _run(task: Task, world: World) -> Outcome:
    try:
        return Outcome(value=task(world))
    except Exception as error:  # noqa: BLE001 - returned to the caller
        traced = traceback.extract_tb(error.__traceback__)
        frames = [frame for frame in traced if _is_users(frame.filename)]
        at = f" at {frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}" if frames else ""
        return Outcome(error=f"{type(error).__name__}: {error}{at}")


def _is_users(file: str) -> bool:
    """Return whether a file is neither a library's nor of this package, which may be an editable install."""
    return is_script(file) and not file.startswith(_PACKAGE)


def _where(frames: Sequence[FrameType]) -> str:
    """Return the innermost line outside of samestep, torch and Python, and the collective it calls."""
    called = ""
    for frame in frames:
        file, line = frame.f_code.co_filename, frame.f_lineno
        if _is_users(file):
            return f"{called}at {file}:{line}: {getline(file, line).strip()}"
        if "/torch/distributed/" in file and frame.f_code.co_name != "wrapper":
            called = f"in {frame.f_code.co_name} "
    return called.strip() or "outside of the function"
