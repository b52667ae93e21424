"""Serial scripts of many styles run unchanged on several workers with equal output and equal files."""

import functools

import pytest

from gallery.manifest import SCRIPTS
from samestep.autopilot.script.options import Load, Options
from support.script_runner import READS, difference, run_script
from support.tiers import mostly_long, stem
from support.written_files import files, same_contents

REFUSED = {"simclr_inside.py", "forward_by_name.py"}
"""Scripts of which nothing can be split, which is an error.

One compares the samples of a batch in `forward`, one never calls a module with parameters.
"""

UNSPLIT = {
    "prints_in_forward.py": ("Writes",),
    "batch_memories.py": ("Queue", "Codebook", "Hardest"),
    "trains_in_forward.py": ("Tent", "Criterion"),
    "kept_in_objects.py": ("Policy", "Remembered", "Lazy", "Decoded", "IntoList", "IntoMethod", "IntoRecord"),
    "faint_coupling.py": ("Gated", "Repelled", "Nudged", "NoisyNorm"),
    "small_router.py": ("SwitchLoss", "SoftLoss", "InOne", "Capacity"),
    "table_lookups.py": ("Graph",),
    "labels_as_indices.py": ("Gathered", "Positioned", "Shifted", "Routed"),
    "later_batches.py": ("MissingTargets", "Clamped", "Outliers", "Watched"),
}
"""Modules whose calls must stay unsplit, in scripts that also call modules that are split."""


def run(processes, script, size, folder, load: Load = "auto", *, is_strict=False):
    folder.mkdir()
    options = Options(device=script.device, load=load)
    ran = script.path, script.arguments, folder, script.runs, options, is_strict
    return processes.run(run_script, size, *ran)


@pytest.fixture(scope="module")
def alone(processes, tmp_path_factory):
    """Runs a script on one worker, once for all tests; returns its output and its folder."""

    @functools.cache
    def run_alone(script):
        folder = tmp_path_factory.mktemp("alone") / "1"
        ((printed, account, trace),) = run(processes, script, 1, folder)
        assert not trace, trace
        assert not account
        return printed, folder

    return run_alone


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_script_that_cannot_be_split_is_refused_in_one_line(processes, alone, name, tmp_path):
    script = next(one for one in SCRIPTS if one.name == name)
    alone(script)
    for _, _, trace in run(processes, script, 2, tmp_path / "2"):
        assert "nothing of what this script does could be split across workers" in trace
        assert "2 silent copies" in trace
        assert len(trace.splitlines()) == 1


DRAW_IN_LOADING = {"phases_in_one_loop.py"}
"""Scripts that draw random numbers while they load, which shares of workers would draw in another order."""
IN_SHARES = "(--load shared)"
"""The end of the account's line about such a script, where each worker has to load its share."""

NEW_WEIGHTS = {"weights_beside.py"}
"""Scripts whose calls use weights of no module for the first time, which the ranks compare then."""


def load_of(script) -> Load:
    """Return how two workers load the samples of a script: shares, where these draw no random numbers."""
    return "auto" if script.name in DRAW_IN_LOADING else "shared"


SHARED = [script for script in SCRIPTS if script.name not in REFUSED]
SHORT_ON_THREE = (
    *("archive_and_database", "dropout_zoo", "gpt_loss_inside", "iterable_data", "later_batches"),
    *("regression_by_hand", "small_router", "sparse_embeddings", "threads_beside", "wgan_gp"),
)
"""Scripts whose slices, files or random numbers are distributed in another way among three ranks."""


SHORT_STRICT = ("cropped_to_longest", "gan", "labels_as_indices", "rnn_classifier", "table_lookups")
"""Scripts with indices, labels, sequences, and batch norm."""


@pytest.mark.parametrize("script", SHARED, ids=stem)
def test_a_serial_script_has_equal_output_and_files_on_two_workers(processes, alone, script, tmp_path):
    """Each worker loads a share of each batch."""
    runs_as_alone(script, alone(script), processes, 2, tmp_path / "2", load_of(script))


@pytest.mark.parametrize("script", mostly_long(SHARED, SHORT_STRICT, stem))
def test_a_device_that_is_as_strict_as_cuda_gives_the_same(processes, alone, script, tmp_path):
    runs_as_alone(script, alone(script), processes, 2, tmp_path / "2", load_of(script), is_strict=True)


@pytest.mark.parametrize("script", mostly_long(SHARED, SHORT_ON_THREE, stem))
def test_a_serial_script_has_equal_output_and_files_on_three_workers(processes, alone, script, tmp_path):
    """How the workers load is chosen by the time that it takes."""
    runs_as_alone(script, alone(script), processes, 3, tmp_path / "3", "auto")


def runs_as_alone(script, ran_alone, processes, size, folder, load, *, is_strict=False):
    """Run a script on several workers, and compare it with its run on one."""
    serial, theirs = ran_alone
    ranks = run(processes, script, size, folder, load, is_strict=is_strict)
    assert not any(trace for _, _, trace in ranks), ranks
    printed, account, _ = ranks[0]
    split = [line for line in account if line.endswith((" call split", " calls split"))]
    assert split
    assert not [line for line in split if line.startswith(UNSPLIT.get(script.name, ()))]
    assert not [line for line in account if line.endswith(IN_SHARES)]
    assert script.name in NEW_WEIGHTS or not [line for line in account if line.startswith(READS)]
    if script.deterministic:
        patterns = script.timing_patterns + script.slice_patterns
        assert difference(serial, printed, leave_out=patterns) is None
    assert len(printed.splitlines()) == len(serial.splitlines())
    assert files(folder) == files(theirs) == sorted(script.files)
    if script.deterministic:
        for name in script.files:
            assert same_contents(theirs / name, folder / name), name


@pytest.mark.parametrize("name", sorted(DRAW_IN_LOADING))
def test_random_numbers_drawn_in_shared_loading_are_an_exception(processes, name, tmp_path):
    script = next(one for one in SCRIPTS if one.name == name)
    ranks = run(processes, script, 2, tmp_path / "2", "shared")
    assert not any(trace for _, _, trace in ranks), ranks
    assert [line for line in ranks[0][1] if line.endswith(IN_SHARES)]
