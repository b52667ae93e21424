"""Runs checks one after the other, each in a process with a time limit, and prints their outcomes."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from samestep.testing.gpu.context import environment, last_lines
from samestep.testing.gpu.registry import Check

Result: TypeAlias = Literal["ok", "failed", "skipped", "not run"]
_GRACE_S = 5.0
"""Seconds that the processes of a check have to end before they are killed."""


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
    shares: bool = False  # whether two ranks share one GPU over Gloo
    limit_s: float = 470.0  # time limit of all checks together


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
    shares = check.shareable and request.type == "cuda"  # Gloo sends tensors of no other accelerator
    if check.gpus <= request.count or (shares and request.shares):
        return ""
    hint = "; with --share-gpu two ranks use the one that is here, over Gloo" if shares else ""
    return f"needs {check.gpus} GPUs, and {request.count} is here{hint}"


def run_all(
    checks: Sequence[Check], request: Request, now: Callable[[], float] = time.monotonic
) -> Iterator[Outcome]:
    """Yield the outcome of each check when it is known; checks that do not fit in the time are not run."""
    end = now() + request.limit_s
    for check in checks:
        left = end - now()
        if reason := reason_to_skip(check, request):
            yield Outcome(name=check.name, result="skipped", reason=reason)
        elif left < 1:
            reason = f"the checks before it used the {request.limit_s:g} s of the whole"
            yield Outcome(name=check.name, result="not run", reason=reason)
        else:
            yield run_one(check, request, min(check.seconds, left))


def run_one(check: Check, request: Request, seconds: float) -> Outcome:
    """Run a check in a process of its own, for at most `seconds`."""
    index = "" if request.type == "cpu" else ":0"
    with tempfile.TemporaryDirectory(prefix="samestep-gpu-") as folder:
        work, file = Path(folder, "work"), Path(folder, "outcome.json")
        work.mkdir()
        asked = {
            "device": f"{request.type}{index}",
            "count": request.count,
            "shares": request.shares,
            "folder": str(work),
            "seconds": seconds,
        }
        command = ("-m", "samestep.testing.gpu.one", check.name, json.dumps(asked), str(file))
        began = time.monotonic()
        output, is_late = _run([sys.executable, *command], seconds)
        took = round(time.monotonic() - began, 2)
        if file.exists():
            return Outcome(name=check.name, **{**json.loads(file.read_text()), "seconds": took})
    reason = f"did not end within {seconds:g} s" if is_late else "ended without an outcome"
    return Outcome(
        name=check.name, result="failed", seconds=took, reason=f"{reason}: {last_lines(output)}".rstrip(": ")
    )


def _run(command: Sequence[str], seconds: float) -> tuple[str, bool]:
    """Run a program and return its output, and whether it was ended with all its processes."""
    process = subprocess.Popen(
        command,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        return process.communicate(timeout=seconds)[0], False
    except subprocess.TimeoutExpired:
        return _end(process), True
    except BaseException:
        _end(process)
        raise
    finally:
        with suppress(ProcessLookupError):  # a check that failed may have left processes
            os.killpg(process.pid, signal.SIGKILL)


def _end(process: "subprocess.Popen[str]") -> str:
    """End a process and those that it started; return the output."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, sent)
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=_GRACE_S)[0]
    return ""


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """Return 0 if checks ran and none failed, 1 if one failed or was not run, 3 if all were skipped."""
    results = {one.result for one in outcomes}
    if results & {"failed", "not run"}:
        return 1
    return 0 if "ok" in results else 3


def as_json(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return the outcomes as plain values."""
    return [asdict(one) for one in outcomes]


def write(text: str) -> None:
    """Print a text on stdout at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in which all columns but the last have one width."""
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head) - 1)]
    padded = (
        [*(cell.ljust(width) for cell, width in zip(line, [*widths], strict=False)), line[-1]]
        for line in lines
    )
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


def table_of_checks(checks: Sequence[Check]) -> str:
    """Return the checks with what each needs and shows."""
    head = ("check", "GPUs", "types", "limit", "shows")
    return table(
        head,
        [(one.name, str(one.gpus), ",".join(one.types), f"{one.seconds:g} s", one.shows) for one in checks],
    )


def table_of_outcomes(outcomes: Sequence[Outcome]) -> str:
    """Return the outcomes with their reasons or figures, and a last line with their numbers."""
    rows = [(one.name, one.result, f"{one.seconds:.1f}", _detail(one)) for one in outcomes]
    counts = Counter(one.result for one in outcomes)
    total = ", ".join(f"{number} {result}" for result, number in sorted(counts.items()))
    seconds = sum(one.seconds for one in outcomes)
    return f"{table(('check', 'result', 'seconds', 'detail'), rows)}\n\n{total}, in {seconds:.0f} s"


def _detail(outcome: Outcome) -> str:
    if outcome.reason:
        return outcome.reason.splitlines()[0]
    return ", ".join(f"{name} {_short(value)}" for name, value in outcome.figures.items())


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
