"""What `samestep run`, `samestep verify` and torchrun report of scripts that hang or crash on two workers.

    PYTHONPATH=tests python benchmarks/hangs.py [--hang-timeout 5] [--timeout 20] [NAME ...]

Runs each script of ``tests/gallery_hangs`` by each of the three, and prints a table, whose sums
``docs/guide/hangs.md`` has: the seconds until the command has ended, and which of the rank at fault, the
collective and the line its report names rightly. Of torchrun's output, the report is what it prints last, the
"root cause", and the last line of the script in the tracebacks of that rank. It prints no collective, except
in the names of functions in a traceback, which count. The time out of torch's process groups is set to
`--timeout`, since the default is 30 minutes.
"""

import argparse
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gallery_hangs.manifest import SCRIPTS, Script
from support.commands import environment
from support.hang_reports import read_report

WITH_TIMEOUT = Path(__file__).parent / "scripts" / "with_timeout.py"
_PATIENCE_S = 120.0
_ALL = ("rank", "collective", "line")


@dataclass(frozen=True)
class Result:
    """What one command reports of one script."""

    seconds: float
    wrong: Sequence[str]
    """Which of rank, collective and line are missing or wrong."""
    note: str = ""
    text: str = ""

    def __str__(self) -> str:
        right = [name for name in _ALL if name not in self.wrong]
        words = "all right" if not self.wrong else f"only {', '.join(right)}" if right else "none"
        return f"{self.seconds:.0f} s, {self.note}{words}"


def run(script: Script, hang_timeout_s: float) -> Result:
    """Return what `samestep run` reports."""
    flags = ["run", "-n", "2", "--mode", "native", "--hang-timeout", f"{hang_timeout_s:g}"]
    seconds, output = _timed([sys.executable, "-m", "samestep", *flags, str(script.path)])
    last = [line for line in output.splitlines() if line.startswith("samestep: ")][-1]
    return Result(seconds, read_report(last).differences(script), text=last)


def verify(script: Script, hang_timeout_s: float) -> Result:
    """Return what `samestep verify` reports; its causes are compared as well."""
    flags = ["verify", "-n", "1,2", "--mode", "native", "--json", "--hang-timeout", f"{hang_timeout_s:g}"]
    seconds, output = _timed([sys.executable, "-m", "samestep", *flags, str(script.path)])
    found = [line for line in output.splitlines() if line.startswith("{")]
    findings = json.loads(found[-1])["findings"] if found else []
    cause = findings[0]["code"] if findings else "no cause"
    text = findings[0]["message"] if findings else output
    report = read_report(text)
    wrong = [name for name in report.differences(script) if name != "line"]
    wrong += [] if f"{script.path}:{script.line}" in text else ["line"]
    note = f"`{cause}`, " if cause == script.cause else f"`{cause}` (not `{script.cause}`), "
    return Result(seconds, wrong, note, text)


def torchrun(script: Script, timeout_s: float) -> Result:
    """Return what torchrun reports."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    seconds, output = _timed([*command, str(WITH_TIMEOUT), f"{timeout_s:g}", str(script.path)])
    root = re.search(r"Root Cause.*?rank\s*: (\d+)", output, re.DOTALL)
    rank = None if root is None else int(root[1])
    lines = re.findall(
        rf'(?:\[rank{rank}\]: +|^ +)File "{re.escape(str(script.path))}", line (\d+)', output, re.MULTILINE
    )
    wrong = [] if rank in script.ranks or not script.ranks else ["rank"]
    names = re.findall(r"in (\w+)$", output, re.MULTILINE)
    wrong += [] if not script.collective or script.collective in names else ["collective"]
    wrong += [] if str(script.line) in lines[-1:] else ["line"]
    return Result(seconds, wrong, text=f"root cause: rank {rank}, lines {lines}")


def _timed(command: Sequence[str]) -> tuple[float, str]:
    """Run a command; return the seconds that it took and its output."""
    begin = time.monotonic()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(OMP_NUM_THREADS="1"),
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=_PATIENCE_S)
    return time.monotonic() - begin, output


def main() -> None:
    """Run the scripts and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--hang-timeout", type=float, default=5.0)
    parser.add_argument("--timeout", type=float, default=20.0)
    given = parser.parse_args()
    print(
        "| script | rank | collective | line | `run` | `verify` | torchrun |\n|---|---|---|---|---|---|---|"
    )
    for script in SCRIPTS:
        if given.names and script.name.removesuffix(".py") not in given.names:
            continue
        results = (
            run(script, given.hang_timeout),
            verify(script, given.hang_timeout),
            torchrun(script, given.timeout),
        )
        ranks = " and ".join(map(str, script.ranks)) or "either"
        cells = [f"`{script.name}`", ranks, script.collective or "none", str(script.line), *map(str, results)]
        print("| " + " | ".join(cells) + " |", flush=True)
        for result in results:
            sys.stderr.write(f"{script.name}: {result.wrong}: {result.text[:600]}\n")


if __name__ == "__main__":
    main()
