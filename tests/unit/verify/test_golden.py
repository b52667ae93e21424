"""A golden run is read as it was written, keeps its size, and names what has changed since."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samestep.base.errors import UsageError
from samestep.launch.job import Program
from samestep.verify.golden import (
    FOLDED,
    Origin,
    as_one,
    described_machine,
    folded,
    golden_file,
    read_golden,
    refuse_other_file,
    write_golden,
)
from samestep.verify.golden_comparison import GoldenVerification
from samestep.verify.run_record import RunRecord
from samestep.verify.script_runs import Script
from samestep.verify.trace import Facts, Step, Trace
from support.golden_runs import trained


def origin(workers=1, **machine):
    described = {**described_machine(), **machine}
    return Origin(
        script="train.py", arguments=(), commit="", workers=workers, date="2026-01-01", machine=described
    )


@pytest.fixture
def golden(tmp_path):
    """Returns a function that writes a golden run, and reads it."""

    def made(run=None, **how):
        run = run or trained()
        control = trained(change=1e-6, printed=run.facts.printed)
        write_golden(tmp_path / "golden.json", golden_file(origin(**how), run, control))
        return read_golden(tmp_path / "golden.json")

    return made


def compared(golden, run, kind="serial"):
    """Return the codes of a comparison, and the report."""

    class Runs:
        def run(self, *_args, **_changed):
            return run

    report = GoldenVerification(
        script=Script(program=Program(target="train.py"), kind=kind), runs=Runs(), workers=run.size
    ).compare(golden)
    return [finding.cause for finding in report.all_findings], report


def test_a_golden_run_is_read_as_it_was_written(golden):
    first = replace(trained(), origin="golden")
    kept = golden().run
    for here, usual in zip(kept.traces[0].steps, folded(first).traces[0].steps, strict=True):
        assert asdict(here) == asdict(usual)
    assert kept.facts.modules == first.facts.modules
    assert kept.facts.parameters == first.facts.parameters


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 4000), st.integers(0, 2**32 - 1))
def test_folding_keeps_the_size_of_a_difference(count, seed):
    draw = np.random.default_rng(seed)
    here, usual = draw.normal(size=(2, count))
    runs = [
        folded(RunRecord([Trace(Facts(rank=0), [Step(index=0, gradient=vector.tolist())], 1)]))
        for vector in (here, usual, here - usual)
    ]
    first, second, difference = (run.gradient(0) for run in runs)
    assert first - second == pytest.approx(difference)
    assert len(difference) <= max(FOLDED, min(count, FOLDED))
    assert 0.4 < np.linalg.norm(difference) / np.linalg.norm(here - usual) < 1.9


def test_hundred_steps_of_a_large_model_take_less_than_a_megabyte(tmp_path):
    """BERT and its relatives have about 300 tensors in 100 million parameters, and 250 modules."""
    modules = {
        f"0: encoder.layer.{k}.attention": "Linear(in_features=768, out_features=768)" for k in range(250)
    }
    run = trained(steps=100, shapes=[(768, 768)] * 300, modules=modules)
    write_golden(tmp_path / "golden.json", golden_file(origin(), run, run))
    assert (tmp_path / "golden.json").stat().st_size < 1e6


@pytest.mark.parametrize(
    ("changed", "codes"),
    [
        ({}, []),
        ({"change": 1e-7}, []),
        ({"change": 1e-2}, ["gradient-scale"]),
        ({"weights": 1e-4}, ["initial-weights"]),
        ({"weights": 1e-9}, []),
        ({"optimizers": [[{"class": "SGD", "momentum": "0.8"}]]}, ["optimizer-changed"]),
        ({"dropouts": {"dropout": [0.2]}}, ["dropout-rate"]),
        ({"modules": {"0: ": "Sequential()", "0: 1": "Dropout(p=0.2, inplace=False)"}}, ["dropout-rate"]),
        ({"modules": {"0: ": "Sequential()"}}, ["dropout-rate"]),
        ({"modules": {"0: ": "Mine()", "0: 1": "Dropout(p=0.1, inplace=False)"}}, ["model-changed"]),
        ({"printed": "0.70\n" * 6}, ["printed"]),
        ({"steps": 5}, ["number-of-steps"]),
    ],
)
def test_a_change_is_named(golden, changed, codes):
    assert compared(golden(), trained(**changed))[0] == codes


@pytest.mark.parametrize(
    ("version", "norm", "codes"),
    [
        ("2.6.0", "BatchNorm2d(16, eps=1e-05)", []),
        ("2.6.0", "BatchNorm2d(16, eps=1e-04)", ["model-changed"]),
        ("2.6.0", "BatchNorm2d(8, eps=1e-05)", ["model-changed"]),
        ("", "BatchNorm2d(16, eps=1e-05)", ["model-changed"]),
    ],
)
def test_arguments_of_another_version_of_torch_are_not_compared(golden, version, norm, codes):
    usual = {"modules": {"0: ": norm}, "optimizers": [[{"class": "SGD", "momentum": "0.9"}]]}
    here = {
        "modules": {"0: ": "BatchNorm2d(16, eps=1e-05, bias=True)"},
        "optimizers": [[{"class": "SGD", "momentum": "0.9", "fused": "None"}]]
        if version
        else usual["optimizers"],
    }
    kept = golden(trained(**usual), **({"torch": version} if version else {}))
    assert compared(kept, trained(**here))[0] == codes


def test_a_script_without_an_optimizer_has_a_golden_run(golden):
    usual = trained(parameters=[])
    assert compared(golden(usual), trained(parameters=[]))[0] == []
    assert compared(golden(usual), trained(parameters=[], change=1e-2))[0] == ["gradient-scale"]


def test_several_workers_agree_with_a_golden_run_of_another_number(golden):
    three = golden(trained(workers=3), workers=3)
    assert compared(three, trained(workers=2), "native")[0] == []
    assert compared(golden(), trained(workers=3), "native")[0] == []


def test_a_file_that_is_no_golden_run_is_not_replaced(golden, tmp_path):
    golden()
    (tmp_path / "empty").touch()
    for name in ("golden.json", "empty", "missing"):
        refuse_other_file(tmp_path / name)
    (tmp_path / "train.py").write_text("import torch\n")
    for path in (tmp_path / "train.py", Path("/dev/null")):
        with pytest.raises(UsageError, match=path.name):
            refuse_other_file(path)


def test_a_count_of_as_many_workers_is_no_share_of_another(golden):
    usual, halved = ("0.50\n" * 6 + f"best epoch {epoch}\n" for epoch in (6, 3))
    run = trained(workers=2, printed=halved)
    for workers, codes in ((1, []), (2, ["printed"])):
        kept = golden(trained(workers=workers, printed=usual), workers=workers)
        assert compared(kept, run, "native")[0] == codes


def test_the_samples_of_all_ranks_are_those_of_one_worker():
    alone, shared = as_one(trained()), as_one(trained(workers=3))
    assert [sorted(step.samples) for step in shared.traces[0].steps] == [
        sorted(step.samples) for step in alone.traces[0].steps
    ]


def test_prints_that_rounding_can_change_on_another_machine_are_an_exception(golden):
    here, elsewhere = golden(), golden(processor="another")
    changed = trained(printed="0.70\n" * 6)
    assert [compared(kept, changed)[1].verdict for kept in (here, elsewhere)] == [
        "different",
        "same but for exceptions",
    ]


def test_local_batch_norm_on_another_number_of_workers_proves_nothing(golden):
    codes, report = compared(golden(), trained(workers=2, change=1e-2, batch_norm=True), "native")
    assert (codes, report.verdict) == (["not-compared"], "inconclusive")


def test_another_order_of_parameters_is_the_same_training(golden):
    usual = trained()
    order = [3, 1, 0, 2]

    def permuted(numbers):
        return np.array(numbers).reshape(4, -1)[order].flatten().tolist()

    (trace,) = usual.traces
    steps = [
        replace(
            step, gradient=permuted(step.gradient), before=permuted(step.before), after=permuted(step.after)
        )
        for step in trace.steps
    ]
    parameters = [[trace.facts.parameters[0][index] for index in order]]
    run = replace(
        usual, traces=[replace(trace, steps=steps, facts=replace(trace.facts, parameters=parameters))]
    )
    assert compared(golden(), run)[0] == []


def damaged(content, path, value):
    """Return a golden file in which the value at a path is another one, or missing."""
    document = json.loads(content)
    *outer, last = path
    place = document
    for name in outer:
        place = place[name]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return json.dumps(document)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["format"], "other"),
        (["version"], 99),
        (["version"], "1"),
        (["run", "steps"], []),
        (["control", "steps"], []),
        (["run", "steps", 0, "losses"], "%%%"),
        (["run", "steps", 0, "norms"], ""),
        (["run", "steps", 0, "optimizer"], -1),
        (["initial"], []),
        (["initial", 0], ""),
        (["run", "parameters"], None),
        (["origin", "workers"], 0),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(golden, tmp_path, path, value):
    golden()
    file = tmp_path / "golden.json"
    file.write_text(damaged(file.read_text(), path, value))
    with pytest.raises(UsageError) as refused:
        read_golden(file)
    assert "\n" not in str(refused.value)
    assert str(file) in str(refused.value)
