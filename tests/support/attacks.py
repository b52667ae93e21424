"""Other users who attack ranks on nodes: from another node, on the same one, and with what was recorded."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psutil

from samestep.ranks.rendezvous.endpoint import PORTS
from support import attacker, packet_recorder, socket_attacker
from support.commands import Ended, finish
from support.nodes import Nodes

NOBODY = 65534
_PYTHON = "/usr/bin/python3"  # which the other user can reach
_AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", _PYTHON, "-S", "-c")


def ports(nodes: Nodes) -> set[int]:
    """Return the ports at which Python programs listen on node0."""
    lines = nodes.run("node0", "ss", "-ltnpH").out.splitlines()
    return {int(line.split()[3].rpartition(":")[2]) for line in lines if "python" in line}


def await_ports(
    nodes: Nodes, before: set[int], count: int, running: Sequence[subprocess.Popen[str]], *, rendezvous: bool
) -> set[int]:
    """Return the ports of node0 that were not there `before`, once there are `count` of them.

    They are those of the job's rendezvous, at which rank 0 waits for the others, or all but those.
    """
    deadline = time.monotonic() + 60
    while len(found := {port for port in ports(nodes) - before if (port in PORTS) == rendezvous}) < count:
        assert time.monotonic() < deadline, [process.poll() for process in running]
        time.sleep(0.1)
    return found


def finish_uncontended(process: subprocess.Popen[str]) -> tuple[Ended, float]:
    """Wait for the end of a command that has just begun; return it and its seconds, without waits for a core.

    Other programs take the cores, those of the attackers among them. The command has waited as long as its
    first process and the one of its descendants that waited longest.
    """
    begin, waited_s, over = time.monotonic(), {}, Event()

    def sample() -> None:
        family = psutil.Process(process.pid)
        while not over.wait(0.05):
            with suppress(psutil.Error, OSError):
                for pid in (process.pid, *(child.pid for child in family.children(recursive=True))):
                    nanoseconds = Path(f"/proc/{pid}/schedstat").read_text().split()[1]
                    waited_s[pid] = int(nanoseconds) / 1e9

    sampling = Thread(target=sample)
    sampling.start()
    try:
        ended = finish(process)
        took_s = time.monotonic() - begin
    finally:
        over.set()
        sampling.join()
    return ended, took_s - waited_s.pop(process.pid, 0.0) - max(waited_s.values(), default=0.0)


@contextmanager
def recorded(nodes: Nodes, file: Path, *, between: tuple[str, str]) -> Iterator[None]:
    """Write to a file what two nodes send to each other, to the end of the block."""
    code = Path(packet_recorder.__file__).read_text()
    addresses = [nodes.addresses[name] for name in between]
    with file.open("w") as lines:
        other = subprocess.Popen(
            nodes.command("switch", sys.executable, "-S", "-c", code, f"to-{between[0]}", *addresses),
            stdout=lines,
            stderr=subprocess.PIPE,
            text=True,
        )
    try:
        assert other.stderr.readline() == "ready\n"
        yield
    finally:
        other.kill()
        other.communicate()


@contextmanager
def attacking(
    nodes: Nodes, *targets: str, recording: Path, until: set[int] = frozenset()
) -> Iterator[dict[str, Any]]:
    """Attack addresses and hosts from node2, to the end of the block; what it gives is complete then.

    The block begins when the ports in `until` have been attacked, and have answered a replay.
    """
    code, report = Path(attacker.__file__).read_text(), {"attacked": (), "replayed": ()}
    with recording.open() as lines:
        other = subprocess.Popen(
            nodes.command("node2", *_AS_NOBODY, code, *targets, folder=Path("/")),
            stdin=lines,
            stdout=subprocess.PIPE,
            text=True,
        )
    try:
        while not all(until <= {port for _, port in report[name]} for name in ("attacked", "replayed")):
            report.update(json.loads(other.stdout.readline()))
        yield report
        other.terminate()
        out, _ = other.communicate(timeout=30)
        report.update(json.loads(out.splitlines()[-1]))
    finally:
        other.kill()
        other.communicate()


@contextmanager
def attacked_on(nodes: Nodes, *names: str) -> Iterator[list[int]]:
    """Have another user of some nodes attack all that listens there, to the end of the block.

    Give a list that then has the number of connections taken on each node where any was.
    """
    code = Path(socket_attacker.__file__).read_text()
    others = [
        subprocess.Popen(
            nodes.command(name, *_AS_NOBODY, code, folder=Path("/")),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]
    try:
        assert [other.stdout.readline() for other in others] == [f"{NOBODY}\n"] * len(others)
        taken: list[int] = []
        yield taken
        taken += filter(None, (int(other.communicate("\n", timeout=30)[0]) for other in others))
    finally:
        for other in others:
            other.kill()
            other.communicate()
