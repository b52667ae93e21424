"""``samestep run -n 2`` runs a script in one process, as ``python`` does, whatever it does there.

Each test would catch a fault that only its script shows; the README of `gallery_once` lists them.
"""

import re
from fnmatch import fnmatch

import pytest

from gallery.manifest import SCRIPTS as EARLIER
from gallery_once.manifest import SCRIPTS
from support.commands import finish
from support.forked_commands import start
from support.script_runner import difference
from support.tiers import mostly_long, stem
from support.written_files import files

SHORT = ("housekeeping", "steered", "tracked", "waits_for_children")
"""The scripts that `make test` runs; the others start interpreters that load torch."""

REPLACED = "replaces_itself.py"
"""Its process is another program in the end, which reports no calls."""


@pytest.mark.parametrize("script", mostly_long([one for one in SCRIPTS if one.has_own_process], SHORT, stem))
def test_a_command_with_a_helper_does_what_it_does_alone(script, tmp_path, monkeypatch):
    alone, found = (ran(script, workers, tmp_path, monkeypatch) for workers in (1, 2))

    assert difference(alone.out, found.out) is None
    assert own_lines(found.err) == own_lines(alone.err)
    assert re.search(r"\d calls? split$", found.err, re.MULTILINE) or script.name == REPLACED, found.err
    names = files(tmp_path / "2")
    assert len(names) == len(script.files), names
    assert all(map(fnmatch, names, script.files)), names


def test_a_helper_compiles_a_model_that_uses_functions_of_the_script(tmp_path, monkeypatch):
    """Only a command has helpers in which the script's modules never were."""
    (script,) = (one for one in EARLIER if one.name == "compiled.py")
    alone, found = (ran(script, workers, tmp_path, monkeypatch) for workers in (1, 2))

    assert difference(alone.out, found.out, leave_out=script.timing_patterns) is None
    assert re.search(r"40 calls split$", found.err, re.MULTILINE), found.err


def ran(script, workers, folder, monkeypatch):
    """Run a script in a new folder, to its end and that of all its processes."""
    reads, folder = folder / "lines.txt", folder / str(workers)
    reads.write_text(getattr(script, "reads", ""))
    folder.mkdir()
    monkeypatch.chdir(folder)
    flags = "--short-calls", "split", "-n", workers
    ended = finish(start("run", *flags, script.path, reads=reads))
    assert ended.code == 0, ended.err
    return ended


def own_lines(printed):
    """Return what a script itself has written."""
    return [line for line in printed.splitlines() if "samestep:" not in line]
