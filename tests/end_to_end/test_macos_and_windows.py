"""On macOS and Windows, which are simulated, verbs that start workers are refused; `report` works."""

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
            *(f"signal.SIG{name}" for name in ("KILL", "USR1", "USR2", "HUP", "CHLD", "URG", "ALRM", "CONT")),
        ),
    ),
}
"""Modules and names that Python lacks on each system."""
PRELUDE = """
import contextlib, io, os, signal, sys, sysconfig
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
main(sys.argv[1:])
"""


def command(system, *words, folder):
    code = PRELUDE.format(system=system, lacking=LACKING[system])
    return subprocess.run(
        [sys.executable, "-c", code, *words], cwd=folder, env=environment(), capture_output=True, text=True
    )


@pytest.mark.parametrize("system", LACKING)
@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "report"])
def test_a_command_that_starts_workers_is_refused_in_one_line(system, verb, tmp_path):
    ended = command(system, verb, "train.py", folder=tmp_path)

    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert {"darwin": "macOS", "win32": "Windows"}[system] in ended.stderr


@pytest.mark.parametrize("system", LACKING)
@pytest.mark.parametrize("words", [("--help",), ("--version",), ("report", "--help")])
def test_help_works(system, words, tmp_path):
    ended = command(system, *words, folder=tmp_path)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout


@pytest.mark.parametrize("system", LACKING)
def test_report_writes_the_page_of_a_table(system, tmp_path):
    (tmp_path / "times.csv").write_text("workers,seconds\n1,10\n2,6\n")

    ended = command(system, "report", "times.csv", folder=tmp_path)

    assert ended.returncode == 0, ended.stderr
    assert list(tmp_path.rglob("*.html"))
