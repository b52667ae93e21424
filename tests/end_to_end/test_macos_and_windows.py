"""On macOS and Windows, which are simulated, verbs that start workers are refused; `report` works."""

import json
import subprocess
import sys

import pytest

from samestep.cli.main import VERBS
from support.commands import environment

LACKING = {
    "darwin": ((), ("os.sched_getaffinity", "os.sched_setaffinity", "os.memfd_create")),
    "win32": (
        ("fcntl", "resource", "pwd", "grp", "termios"),
        (
            *(
                "os.fork",
                "os.sched_getaffinity",
                "os.killpg",
                "os.getuid",
                "os.geteuid",
                "os.register_at_fork",
            ),
            *(f"os.O_{name}" for name in ("CLOEXEC", "NONBLOCK", "NOCTTY", "NOFOLLOW")),
            *(f"signal.SIG{name}" for name in ("KILL", "USR1", "USR2", "HUP", "CHLD", "URG", "ALRM", "CONT")),
        ),
    ),
}
"""Modules and names that Python lacks on each system."""
PRELUDE = """
import contextlib, io, json, os, signal, sys, sysconfig
import psutil
from samestep.cli.main import run_command
# Other packages are those of the real system: only samestep itself is loaded again.
sysconfig.get_config_vars()
for words in (["run", "--help"], ["report", "--help"]):
    with contextlib.redirect_stdout(io.StringIO()):
        run_command(words)
for name in [name for name in sys.modules if name.partition(".")[0] == "samestep"]:
    del sys.modules[name]
modules, names = {lacking}
for name in modules:
    sys.modules[name] = None
for name in names:
    owner, attribute = name.split(".")
    delattr(sys.modules[owner], attribute)
sys.platform = "{system}"
from samestep.cli.main import main
ends = []
for words in json.loads(sys.argv[1]):
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(words)
        except SystemExit as end:
            code = end.code or 0
    ends.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(ends))
"""
STARTING = [(verb, "train.py") for verb in VERBS if verb != "report"]
"""Commands that start workers."""
HELP = [("--help",), ("--version",), ("report", "--help")]
REPORT = ("report", "times.csv")


@pytest.mark.parametrize(("system", "name"), [("darwin", "macOS"), ("win32", "Windows")])
def test_commands_that_start_workers_are_refused_and_the_others_work(system, name, tmp_path):
    (tmp_path / "times.csv").write_text("workers,seconds\n1,10\n2,6\n")
    code, commands = PRELUDE.format(system=system, lacking=LACKING[system]), [*STARTING, *HELP, REPORT]
    ended = subprocess.run(
        [sys.executable, "-c", code, json.dumps(commands)],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
    )

    assert (ended.returncode, ended.stderr) == (0, "")
    ends = dict(zip(commands, json.loads(ended.stdout), strict=True))
    refused = {words: ends.pop(words) for words in STARTING}
    wrong = [
        (words, code, err)
        for words, (code, _, err) in refused.items()
        if code != 2 or len(err.splitlines()) != 1 or name not in err
    ]
    assert wrong == []
    assert {words: (code, err) for words, (code, _, err) in ends.items() if code or err} == {}
    assert all(out for _, out, _ in ends.values())
    assert list(tmp_path.rglob("*.html"))
