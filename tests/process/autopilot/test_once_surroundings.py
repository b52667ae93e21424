"""Scripts with effects that show how often they run, with threads, forks and signals, run once with helpers.

Each test would catch a fault that only its script shows; the README of `gallery_once` lists them.
"""

from fnmatch import fnmatch

import pytest

from gallery_once.manifest import SCRIPTS
from samestep.autopilot.script.options import Options
from support.script_runner import difference, run_script
from support.tiers import mostly_long, stem
from support.written_files import files, same_contents

SHORT = ("caches_in_c", "fed_by_a_socket", "forks", "named_runs", "signals")
"""The scripts that `make test` runs: those whose effects no other test has."""
OF_ONE_RUN = ("budget.py", "named_runs.py")
"""Scripts whose files differ from run to run by names or lengths; they print whether these are right."""


def run(processes, script, folder, helpers):
    folder.mkdir()
    options = Options(short_calls="split")
    ((printed, account, trace),) = processes.run(
        run_script, 1, script.path, (), folder, 1, options, False, helpers
    )
    assert not trace, trace
    return printed, account


@pytest.mark.parametrize(
    "script", mostly_long([one for one in SCRIPTS if not one.has_own_process], SHORT, stem)
)
def test_a_script_with_a_helper_has_the_effects_that_it_has_alone(processes, script, tmp_path):
    printed, _ = run(processes, script, tmp_path / "1", 0)
    found, account = run(processes, script, tmp_path / "2", 1)

    assert difference(printed, found) is None
    names = files(tmp_path / "2")
    assert len(names) == len(script.files)
    assert all(map(fnmatch, names, script.files)), names
    for name in () if script.name in OF_ONE_RUN else names:
        assert _same(tmp_path / "1" / name, tmp_path / "2" / name), name
    assert [line for line in account if line.endswith((" call split", " calls split"))], account


def _same(one, other):
    if one.suffix in (".dat", ".zip"):
        return one.read_bytes() == other.read_bytes() or one.suffix == ".zip"
    return one.name == "losses.db" or same_contents(one, other)
