"""Runs checks in forked processes with time limits: several at once, then those that time something."""

import json
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

from gpu_checks import forks
from gpu_checks.context import Context, environment, last_lines
from gpu_checks.forks import Ended
from gpu_checks.one import write_outcome
from gpu_checks.registry import Check

Result: TypeAlias = Literal["ok", "failed", "skipped", "not run"]
_POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a check, and the reason of any other result than ``ok``."""

    name: str
    result: Result
    seconds: float = 0.0
    reason: str = ""
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The devices of the checks, and their time."""

    type: str  # device type, by torch's name; ``cpu`` to test the code of the checks
    count: int  # number of devices
    shares: bool = False  # whether two ranks share one GPU over NCCL
    limit_s: float  # time limit of all checks together
    width: int = 1  # checks that run at the same time


def reason_to_skip(check: Check, request: Request) -> str:
    """Return why a check cannot run on these devices; empty if it can."""
    if request.type == "cpu":
        return "" if check.on_cpu else "needs a GPU"
    if request.type not in check.types:
        return f"is for {', '.join(check.types)}, not for {request.type}"
    if check.only_one and request.count > 1:
        return f"is for one GPU, and {request.count} are here"
    return _lack_of_gpus(check, request)


def _lack_of_gpus(check: Check, request: Request) -> str:
    shares = check.shareable and request.type == "cuda"  # no other back end accepts two ranks on a device
    if check.gpus <= request.count or (shares and request.shares):
        return ""
    hint = "; with --share-gpu two ranks use the one that is here" if shares else ""
    return f"needs {check.gpus} GPUs, and {request.count} is here{hint}"


def run_all(
    checks: Sequence[Check], request: Request, now: Callable[[], float] = time.monotonic
) -> Iterator[Outcome]:
    """Yield the outcome of each check when it is known; checks that do not fit in the time are not run."""
    end = now() + request.limit_s
    able = []
    for check in checks:
        if reason := reason_to_skip(check, request):
            yield Outcome(name=check.name, result="skipped", reason=reason)
        else:
            able.append(check)
    for width, alone in ((request.width, False), (1, True)):
        group = [one for one in able if one.alone is alone]
        yield from _run_group(deque(group), request, width, end=end, now=now)


def _run_group(
    waiting: deque[Check], request: Request, width: int, *, end: float, now: Callable[[], float]
) -> Iterator[Outcome]:
    running: list[Running] = []
    try:
        while waiting or running:
            while waiting and len(running) < width and end - now() >= 1:
                check = waiting.popleft()
                running.append(Running(check, request, min(check.seconds, end - now())))
            if waiting and not running:
                reason = f"the checks before it used the {request.limit_s:g} s of the whole"
                yield Outcome(name=waiting.popleft().name, result="not run", reason=reason)
            done = [(one, found) for one in running if (found := one.outcome()) is not None]
            for one, found in done:
                running.remove(one)
                yield found
            if running and not done:
                time.sleep(_POLL_S)
    finally:
        for one in running:
            one.abandon()


class Running:
    """A check that runs in a process of its own, for at most `seconds`."""

    def __init__(self, check: Check, request: Request, seconds: float) -> None:
        self._check = check
        self._seconds = seconds
        self._began = time.monotonic()
        self._folder = tempfile.TemporaryDirectory(prefix="samestep-gpu-")
        work = Path(self._folder.name, "work")
        work.mkdir()
        self._file = work.with_name("outcome.json")
        self._process = forks.start(
            partial(write_outcome, check.name, _context(request, work), self._file),
            work.with_name("check"),
            folder=work,
            variables=environment(),
            leads=True,
        )

    def outcome(self) -> Outcome | None:
        """Return the outcome; None while the check runs. A check whose time is over is killed."""
        ended, took = self._process.wait(0), time.monotonic() - self._began
        if ended is None and took < self._seconds:
            return None
        is_late = ended is None
        with self._folder:
            return self._result(ended or self._process.kill(), round(took, 2), is_late=is_late)

    def abandon(self) -> None:
        """Kill the check."""
        with self._folder:
            self._process.kill()

    def _result(self, ended: Ended, seconds: float, *, is_late: bool) -> Outcome:
        if self._file.exists():
            return Outcome(name=self._check.name, seconds=seconds, **json.loads(self._file.read_text()))
        reason = f"did not end within {self._seconds:g} s" if is_late else f"ended with code {ended.code}"
        logs = sorted(self._file.parent.glob("command-*.err"))  # of commands that it has waited for
        texts = [ended.out, ended.err, *(one.read_text(errors="replace") for one in logs)]
        reason = "\n".join([reason, *filter(None, map(last_lines, texts))])
        return Outcome(name=self._check.name, result="failed", seconds=seconds, reason=reason)


def _context(request: Request, folder: Path) -> Context:
    import torch

    is_cpu = request.type == "cpu"
    return Context(
        device=torch.device(request.type if is_cpu else f"{request.type}:0"),
        count=request.count,
        shares=request.shares and (is_cpu or (request.type == "cuda" and request.count == 1)),
        folder=folder,
    )


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """Return 0 if checks ran and none failed, 1 if one failed or was not run, 3 if all were skipped."""
    results = {one.result for one in outcomes}
    if results & {"failed", "not run"}:
        return 1
    return 0 if "ok" in results else 3
