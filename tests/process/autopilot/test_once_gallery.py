"""Serial scripts of many styles run once, with helpers, with equal output and equal files."""

import functools

import pytest

from gallery.manifest import SCRIPTS
from process.autopilot.test_gallery import UNSPLIT
from samestep.autopilot.script.options import Options
from support.script_runner import difference, run_script
from support.tiers import mostly_long, stem
from support.written_files import files, same_contents

NOTHING_TO_SPLIT = {"forward_by_name.py"}
"""Scripts that call no module with parameters: helpers cannot help, and the result is that of Python."""
SHORT = (
    *("accumulation", "batch_memories", "changing_globals", "compiled", "dropout_zoo", "ema", "gan"),
    *("kept_in_objects", "later_batches", "plateau_scheduler", "rnn_classifier", "sparse_embeddings"),
    *("weights_beside", "wgan_gp"),
)
"""Scripts that change what helpers have: weights, statistics, globals, generators; and kinds of gradients."""
SHORT_ON_THREE = ("batch_memories", "dropout_zoo", "gpt_loss_inside", "state_in_containers")


def run(processes, script, folder, helpers):
    folder.mkdir()
    options = Options(device=script.device)
    ran = script.path, script.arguments, folder, script.runs, options, False, helpers
    ((printed, account, trace),) = processes.run(run_script, 1, *ran)
    assert not trace, trace
    return printed, account


@pytest.fixture(scope="module")
def alone(processes, tmp_path_factory):
    """Runs a script without helpers, once for all tests; returns its output and its folder."""

    @functools.cache
    def run_alone(script):
        folder = tmp_path_factory.mktemp("alone") / "1"
        printed, _ = run(processes, script, folder, 0)
        return printed, folder

    return run_alone


@pytest.mark.parametrize("script", mostly_long(SCRIPTS, SHORT, stem))
def test_a_script_with_one_helper_gives_what_it_gives_alone(processes, alone, script, tmp_path):
    runs_as_alone(processes, script, alone(script), tmp_path / "2", 1)


@pytest.mark.parametrize("script", mostly_long(SCRIPTS, SHORT_ON_THREE, stem))
def test_a_script_with_two_helpers_gives_what_it_gives_alone(processes, alone, script, tmp_path):
    runs_as_alone(processes, script, alone(script), tmp_path / "3", 2)


def runs_as_alone(processes, script, ran_alone, folder, helpers):
    """Run a script with helpers, and compare it with its run without them."""
    serial, theirs = ran_alone
    printed, account = run(processes, script, folder, helpers)
    if script.deterministic:
        assert difference(serial, printed, leave_out=script.timing_patterns) is None
        for name in script.files:
            assert same_contents(theirs / name, folder / name), name
    assert len(printed.splitlines()) == len(serial.splitlines())
    assert files(folder) == files(theirs) == sorted(script.files)
    split = [line for line in account if line.endswith((" call split", " calls split"))]
    assert bool(split) == (script.name not in NOTHING_TO_SPLIT), account
    assert not [line for line in split if line.startswith(UNSPLIT.get(script.name, ()))]
