"""The flags of serial scripts: their values, and programs on which they have no effect."""

from dataclasses import fields

import pytest

from samestep.autopilot.script.options import Options
from samestep.base.errors import UsageError
from samestep.cli.options.serial import with_options
from samestep.launch.job import Job, Program
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
