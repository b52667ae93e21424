"""Another user of the host neither connects to a run nor delays it."""

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from support import attacker
from support.commands import finish, start

NOBODY = 65534
DELAY_S = 5.0


def open_to_all(path):
    return path.exists() and all(folder.stat().st_mode & 0o001 for folder in path.resolve().parents)


PYTHONS = [
    path
    for path in map(Path, (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"))
    if open_to_all(path)
]
pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not PYTHONS, reason="only root can become another user, who needs a Python"
)
ATTACK = Path(attacker.__file__).read_text()

NATIVE = """
import os, sys, time
import torch, torch.distributed as dist
attacked = sys.argv[1]
while os.environ["RANK"] == "1" and not os.path.exists(attacked):
    time.sleep(0.01)
dist.init_process_group("gloo")
values = [None, None]
dist.all_gather_object(values, os.getpid())
open(f"{attacked}-{dist.get_rank()}", "w").write(str(len(set(values))))
"""
JOINS = """
import os, sys, time
import samestep
attacked = sys.argv[1]
while os.environ["RANK"] == "1" and not os.path.exists(attacked):
    time.sleep(0.01)
with samestep.join(device="cpu") as world:
    open(f"{attacked}-{world.place.rank}", "w").write(str(int(world.sum(1))))
"""


@contextmanager
def another_user(code, *arguments, **options):
    """Run a Python program as `nobody`, to the end of the block."""
    process = subprocess.Popen(
        [PYTHONS[0], "-S", "-c", code, *arguments],
        cwd="/",
        env={},
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def listening(pid):
    """Return the addresses at which a process and its descendants listen."""
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    found = set()
    for process in family:
        with suppress(psutil.NoSuchProcess):
            found |= {c.laddr for c in process.net_connections() if c.status == psutil.CONN_LISTEN}
    return sorted(found)


def await_listener(process):
    deadline = time.monotonic() + 60
    while not (found := listening(process.pid)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


@pytest.mark.parametrize("script", [NATIVE, JOINS], ids=["native", "joins"])
def test_a_run_on_one_host_uses_loopback_and_no_other_user_connects(tmp_path, script):
    (tmp_path / "train.py").write_text(script)
    attacked = tmp_path / "attacked"
    process = start("run", "-n", 2, tmp_path / "train.py", attacked)
    try:
        found = await_listener(process)
        with another_user(ATTACK, *(f"{a}:{p}" for a, p in found)) as other:
            report = json.loads(other.stdout.readline())
            attacked.touch()
            begin = time.monotonic()
            ended = finish(process)
            took = time.monotonic() - begin
    finally:
        process.kill()

    assert {address for address, _ in found} == {"127.0.0.1"}
    assert report["uid"] == NOBODY
    assert max(report["answers"].values()) <= 64, report
    assert ended.code == 0, ended.err
    assert [Path(f"{attacked}-{rank}").read_text() for rank in range(2)] == ["2", "2"]
    assert took < DELAY_S


def test_another_user_cannot_read_the_secret_of_a_run(tmp_path):
    show = "import os, time; print(os.environ['SAMESTEP_SECRET_FILE'], flush=True); time.sleep(60)"
    (tmp_path / "show.py").write_text(show)
    process = start("run", "-n", 1, "--mode", "native", tmp_path / "show.py")
    try:
        path = process.stdout.readline().strip()
        look = "import sys; print(open(sys.argv[1], 'rb').read())"
        secret = Path(path).read_bytes()
        with another_user(look, path, stderr=subprocess.PIPE) as other:
            out, err = other.communicate()
    finally:
        process.terminate()
        finish(process)

    assert len(secret) == 32
    assert out == ""
    assert "PermissionError" in err
    assert not Path(path).exists()
