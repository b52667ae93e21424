"""Serial scripts of many styles run once, with helpers, with equal output and equal files."""

import functools

import pytest

from gallery.manifest import SCRIPTS
from samestep.autopilot.script.options import Options
from support.script_runner import READS, difference, run_script
from support.tiers import mostly_long, stem
from support.written_files import files, same_contents

NOTHING_TO_SPLIT = {"forward_by_name.py"}
"""Scripts that call no module with parameters: helpers cannot help, and the result is that of Python."""
UNSPLIT = {
    "simclr_inside.py": ("SimCLR",),
    "prints_in_forward.py": ("Writes",),
    "batch_memories.py": ("Queue", "Codebook", "Hardest"),
    "observed_wholes.py": ("Hooked", "FromArrays", "WithScript", "Cycles", "Centered"),
    "trains_in_forward.py": ("Tent", "Criterion"),
    "kept_in_objects.py": ("Policy", "Remembered", "Lazy", "Decoded", "IntoList", "IntoMethod", "IntoRecord"),
    "faint_coupling.py": ("Gated", "Repelled", "Nudged", "NoisyNorm"),
    "small_router.py": ("SwitchLoss", "SoftLoss", "InOne", "Capacity"),
    "table_lookups.py": ("Graph",),
    "labels_as_indices.py": ("Gathered", "Positioned", "Shifted", "Routed"),
}
"""Modules whose calls must stay unsplit, in scripts that also call modules that are split."""
PARTS = {
    "simclr_inside.py": ("Sequential in SimCLR",),
    "batch_memories.py": ("Linear in Queue", "Linear in Codebook", "Linear in Hardest"),
    "observed_wholes.py": (
        *("Linear in Hooked", "Linear in FromArrays", "Linear in WithScript", "Linear in Cycles"),
        *("Block in Centered", "Linear in Centered", "Clamps"),
    ),
    "prints_in_forward.py": ("Linear in Writes",),
    "small_router.py": ("Linear in SwitchLoss", "Linear in Capacity"),
    "table_lookups.py": ("Linear in Graph",),
    "labels_as_indices.py": ("Embedding in Positioned", "Linear in Routed"),
}
"""Modules that are split in place of those."""
SHORT = (
    *("accumulation", "batch_memories", "changing_globals", "compiled", "dropout_zoo", "ema", "gan"),
    *("kept_in_objects", "observed_wholes", "plateau_scheduler", "rnn_classifier", "sparse_embeddings"),
    *("weights_beside", "wgan_gp"),
)
"""Scripts that change what helpers have: weights, statistics, globals, generators; and kinds of gradients."""
SHORT_ON_THREE = ("batch_memories", "dropout_zoo", "gpt_loss_inside", "state_in_containers")
SHORT_STRICT = ("gan", "labels_as_indices", "rnn_classifier", "table_lookups")
"""Scripts with indices, labels, sequences, and batch norm."""


def run(processes, script, folder, helpers, *, is_strict=False):
    folder.mkdir()
    options = Options(device=script.device, short_calls="split")
    ran = script.path, script.arguments, folder, script.runs, options, is_strict, helpers
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


@pytest.mark.parametrize("script", mostly_long(SCRIPTS, SHORT_STRICT, stem))
def test_a_device_that_is_as_strict_as_cuda_gives_the_same(processes, alone, script, tmp_path):
    """Only this finds a check, or a slice, that a GPU would end the process for."""
    account = runs_as_alone(processes, script, alone(script), tmp_path / "2", 1, is_strict=True)
    assert not [line for line in account if line.startswith(READS)], account


def runs_as_alone(processes, script, ran_alone, folder, helpers, *, is_strict=False):
    """Run a script with helpers, and compare it with its run without them; return the report."""
    serial, serial_folder = ran_alone
    printed, account = run(processes, script, folder, helpers, is_strict=is_strict)
    if script.deterministic:
        assert difference(serial, printed, leave_out=script.timing_patterns) is None
        for name in script.files:
            assert same_contents(serial_folder / name, folder / name), name
    assert len(printed.splitlines()) == len(serial.splitlines())
    assert files(folder) == files(serial_folder) == sorted(script.files)
    split = [line for line in account if line.endswith((" call split", " calls split"))]
    assert bool(split) == (script.name not in NOTHING_TO_SPLIT), account
    assert not [
        line for line in split for name in UNSPLIT.get(script.name, ()) if line.startswith(f"{name} at ")
    ]
    for part in PARTS.get(script.name, ()):
        assert any(line.startswith(f"{part} at ") for line in split), (part, account)
    return account
