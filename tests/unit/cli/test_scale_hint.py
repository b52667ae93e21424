"""`samestep run` prints the command of `scale` for its script once, if `scale` can run it."""

from pathlib import Path

import pytest

from samestep.autopilot.script.options import Options
from samestep.cli import run
from samestep.cli.run import HINT_FILE, scale_hint
from samestep.launch.job import Job, Nodes, Program
from samestep.launch.plan import Join, Spawn
from samestep.launch.source.classify import ScriptKind
from samestep.launchers.detect import detect
from samestep.run.decision import Decision


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Use a cache folder of the test, and a terminal without GPUs."""
    folder = tmp_path / "cache"
    monkeypatch.setattr(run, "user_cache", lambda: folder)
    monkeypatch.setattr(run, "can_have_accelerators", lambda: False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    return folder


def decision(*, workers=2, nodes=1, target="train.py", kind="script", plan=None, script="serial", **options):
    nodes = Nodes(count=nodes) if nodes == 1 else Nodes(count=nodes, rank=0)
    return Decision(
        job=Job(program=Program(target=target, kind=kind, args=("--lr", "0.1")), workers=workers),
        plan=plan or Spawn(local=workers, nodes=nodes),
        detected=detect({}),
        script=ScriptKind(script),
        threads=None,
        must_join=False,
        options=Options(**options),
    )


def test_the_hint_is_printed_once(cache):
    first = scale_hint(decision())

    assert "samestep scale -n 1,2 -- train.py --lr 0.1 " in first
    assert (cache / HINT_FILE).exists()
    assert scale_hint(decision()) == ""


def test_the_hint_for_a_module_has_the_flag_of_scale():
    assert "samestep scale -n 1,4 -m -- train --lr 0.1 " in scale_hint(
        decision(workers=4, target="train", kind="module")
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"workers": 1},
        {"nodes": 2},
        {"kind": "executable"},
        {"kind": "module", "target": "samestep"},
        {"plan": Join(place=detect({}).place, master=None)},
        {"script": "spawns"},
    ],
)
def test_a_run_that_scale_does_not_support_has_no_hint_and_no_record(cache, changes):
    assert scale_hint(decision(**changes)) == ""
    assert not cache.exists()


def test_a_machine_with_gpus_has_no_hint_unless_the_cpu_was_requested(cache, monkeypatch):
    monkeypatch.setattr(run, "can_have_accelerators", lambda: True)

    assert scale_hint(decision()) == ""
    assert not cache.exists()
    assert scale_hint(decision(device="cpu"))


def test_there_is_no_hint_without_a_terminal(cache, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: False, raising=False)

    assert scale_hint(decision()) == ""
    assert not cache.exists()


def test_there_is_no_hint_if_it_cannot_be_recorded(cache):
    Path(cache).write_text("a file where the folder would be")

    assert scale_hint(decision()) == ""
