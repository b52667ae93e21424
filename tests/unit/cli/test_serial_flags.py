"""The flags of serial scripts: their values, and programs on which they have no effect."""

from contextlib import nullcontext
from dataclasses import fields, replace

import pytest

from samestep.autopilot.script.options import Options
from samestep.base import env
from samestep.base.errors import UsageError
from samestep.cli.main import run_command
from samestep.cli.options import serial
from samestep.cli.options.serial import with_options
from samestep.launch.job import Job, Nodes, Program
from samestep.launch.plan import Spawn
from samestep.run.decision import decide


@pytest.fixture
def decision(tmp_path):
    def decided(text="print(1)", workers=2):
        (tmp_path / "train.py").write_text(text)
        job = Job(program=Program(target=str(tmp_path / "train.py")), workers=workers)
        return decide(job, mode="auto", threads=None, environment={})

    return decided


def flags(**others):
    return {one.name: one.default for one in fields(Options)} | others


def test_given_values_are_the_options_of_a_serial_script(decision):
    assert with_options(decision(), **flags()).options == Options()
    assert with_options(decision(), **flags(short_calls="split")).options == Options(short_calls="split")
    assert with_options(decision(workers=1), **flags(short_calls="split")).options.short_calls == "split"


def test_a_wrong_value_is_refused_with_the_choices(decision):
    with pytest.raises(UsageError, match=r"--short-calls 'none' .*auto, split"):
        with_options(decision(), **flags(short_calls="none"))


def test_a_flag_without_effect_is_refused(decision):
    native = decision("import torch.distributed as dist\ndist.init_process_group('gloo')")

    with_options(native, **flags())
    with pytest.raises(UsageError, match=r"--short-calls .*train\.py .*--mode autopilot"):
        with_options(native, **flags(short_calls="split"))
    with pytest.raises(UsageError, match=r"--explain .*-n 2"):
        with_options(decision(workers=1), **flags(explain=True))


@pytest.mark.parametrize("rank", [0, 1, None])
def test_on_several_nodes_the_measurements_of_the_first_one_count(decision, rank, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(serial, "accelerator_count", lambda: 0)
    nodes = Nodes(count=2, rank=rank, endpoint="first:29500")
    there = replace(decision(), plan=Spawn(local=2, nodes=nodes))

    with pytest.raises(UsageError, match="4 ranks on 2 hosts") if rank == 0 else nullcontext():
        serial.refuse_unmeasured(there, "auto")


def test_a_training_without_measurements_creates_no_run_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(serial, "accelerator_count", lambda: 0)
    monkeypatch.setattr(env, "snapshot", dict)

    asked = ["train", "digits", "-n", "2", "--algorithm", "auto", "--out", str(tmp_path / "run")]
    assert run_command(asked) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("samestep bench all-reduce -n 2 --save")
    assert not (tmp_path / "run").exists()
