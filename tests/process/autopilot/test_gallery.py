"""Serial scripts of many styles run unchanged on 2 and 3 workers: same prints, same files, once."""

import functools
import sqlite3
import warnings
from contextlib import closing

import numpy as np
import pytest
import torch

from gallery.manifest import SCRIPTS
from samestep.autopilot.options import Load, Options
from samestep.watch.tree import leaves
from support.hosted import difference, run_script

REFUSED = {"simclr_inside.py"}
"""Scripts that cannot be shared out, and are told so: one compares the samples of a batch in `forward`."""


def run(processes, script, size, folder, load: Load = "auto"):
    folder.mkdir()
    options = Options(device=script.device, load=load)
    return processes.run(run_script, size, script.path, script.arguments, folder, script.runs, options)


@pytest.fixture(scope="module")
def alone(processes, tmp_path_factory):
    """Runs a script on one worker, once for all tests; returns what came of it, and its folder."""

    @functools.cache
    def run_alone(script):
        folder = tmp_path_factory.mktemp("alone") / "1"
        ((printed, account, trace),) = run(processes, script, 1, folder)
        assert not trace, trace
        assert not account
        return printed, folder

    return run_alone


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_script_that_cannot_be_shared_out_is_refused_in_plain_words(processes, alone, name, tmp_path):
    script = next(one for one in SCRIPTS if one.name == name)
    alone(script)
    for _, _, trace in run(processes, script, 2, tmp_path / "2"):
        assert "nothing of what this script does could be shared out" in trace
        assert "2 silent copies" in trace
        assert len(trace.splitlines()) == 1


DRAW_IN_LOADING = {"phases_in_one_loop.py"}
LOADERS = [script for script in SCRIPTS if "DataLoader(" in script.path.read_text()]

SHARED = [script for script in SCRIPTS if script.name not in REFUSED]


@pytest.mark.parametrize("script", SHARED, ids=lambda script: script.name.removesuffix(".py"))
def test_a_serial_script_does_on_several_workers_what_it_does_on_one(processes, alone, script, tmp_path):
    serial, theirs = alone(script)
    for size in (2, 3):
        folder = tmp_path / str(size)
        ranks = run(processes, script, size, folder)
        assert not any(trace for _, _, trace in ranks), ranks
        printed, account, _ = ranks[0]
        assert any(line.endswith("shared out") for line in account)
        if script.deterministic:
            assert difference(serial, printed, leave_out=script.timing_patterns) is None
        assert len(printed.splitlines()) == len(serial.splitlines())
        assert files(folder) == files(theirs) == sorted(script.files)
        if script.deterministic:
            for name in script.files:
                assert same_contents(theirs / name, folder / name), name


@pytest.mark.parametrize("script", LOADERS, ids=lambda script: script.name.removesuffix(".py"))
def test_it_does_so_where_each_worker_loads_its_share(processes, alone, script, tmp_path):
    serial, _ = alone(script)
    ranks = run(processes, script, 2, tmp_path / "2", "shared")
    assert not any(trace for _, _, trace in ranks), ranks
    printed, account, _ = ranks[0]
    exceptions = [line for line in account if line.endswith("(--load shared)")]
    assert bool(exceptions) == (script.name in DRAW_IN_LOADING), account
    if script.deterministic and not exceptions:
        assert difference(serial, printed, leave_out=script.timing_patterns) is None


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def same_contents(one, other):
    if one.suffix == ".db":
        return dumped(one) == dumped(other)
    if one.suffix in (".npy", ".npz"):
        return all(close(a, b) for a, b in zip(arrays(one), arrays(other), strict=True))
    try:
        first, second = (dict(tensors_of(path)) for path in (one, other))
    except Exception:
        return difference(one.read_text(), other.read_text()) is None
    return first.keys() == second.keys() and all(close(first[path], second[path]) for path in first)


def dumped(path):
    with closing(sqlite3.connect(path)) as database:
        return [*database.iterdump()]


def arrays(path):
    loaded = np.load(path)
    return list(loaded.values()) if path.suffix == ".npz" else [loaded]


def tensors_of(path):
    if path.suffix == ".jit":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return torch.jit.load(path).state_dict().items()
    value = torch.load(path, weights_only=False)
    return leaves(value.state_dict() if isinstance(value, torch.nn.Module) else value)


def close(one, other):
    """Whether weights are equal but for rounding, which a line search makes larger than any other loop."""
    return one.shape == other.shape and np.allclose(np.asarray(one), np.asarray(other), rtol=1e-6, atol=1e-8)
