"""Experiments that run commands of samestep: their arguments, and what they make of the results."""

import pytest

from samestep.base.errors import WorkerFailed
from samestep.base.machine.description import cpu_share
from samestep_lab.experiments import launchers, strong_scaling
from samestep_lab.experiments.commands import parsed
from samestep_lab.experiments.experiment import Setup

SETUP = Setup(workers=4, ranks=list)


def point(workers, rate, **changes):
    ends = {"samples_per_second_low": None, "samples_per_second_high": None}
    ends |= {"speedup_low": 0.5 * rate / 100, "speedup_high": 1.5 * rate / 100}
    common = {"speedup": rate / 100, "efficiency": rate / 100 / workers, "oversubscribed": False}
    step = {"step_s": {"forward": 0.002, "exposed_sync": 0.001}}
    step |= {"threads": 1, "cores_of": 1, "baseline_cores_of": workers}
    return {"workers": workers, "samples_per_second": rate, **ends, **common, **step, **changes}


def study(points):
    return {
        "points": points,
        "one_process": [],
        "verdict": {"sentence": "A."},
        "notes": [{"code": "interrupted", "text": "C."}],
    }


@pytest.fixture
def calls(monkeypatch):
    """The arguments of each command, which returns the study in `calls.study`."""

    class Calls(list):
        study = study([])

    made = Calls()
    monkeypatch.setattr(strong_scaling, "json_of", lambda arguments: made.append(arguments) or made.study)
    return made


@pytest.mark.parametrize(("most", "counts"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_workers_are_powers_of_2_and_the_largest_number(most, counts):
    assert strong_scaling.numbers_of_workers(most) == counts


def test_strong_scaling_measures_each_number_of_workers(calls):
    calls.study = study([point(1, 100.0), point(4, 300.0)])
    calls.study["one_process"] = [point(1, 150.0, threads=4, cores_of=4, baseline_cores_of=4)]

    outcome = strong_scaling.run(SETUP, steps=7, repeats=2)

    (arguments,) = calls
    assert arguments[:6] == ["scale", "digits", "-n", "1,2,4", "--scaling", "strong"]
    assert arguments[6:10] == ["--steps", "7", "--repeats", "2"]
    assert [one["speedup"] for one in outcome.values["points"]] == [1.0, 3.0]
    assert outcome.tables[0].rows == [
        ("1", "100", "1.00 (0.50 - 1.50)", "1 thread", "1.00", "3 ms", "1 ms", "no"),
        ("4", "300", "3.00 (1.50 - 4.50)", "4 threads", "0.75", "3 ms", "1 ms", "no"),
        ("1 with the threads of 4", "150", "1.50 (0.75 - 2.25)", "4 threads", "1.50", "3 ms", "1 ms", "no"),
    ]


@pytest.mark.parametrize(
    ("variables", "names"),
    [({}, ["samestep", "torchrun"]), ({"SLURM_JOB_ID": "7"}, ["samestep", "torchrun", "srun"])],
)
def test_srun_is_compared_in_an_allocation(calls, monkeypatch, variables, names):
    monkeypatch.setattr(launchers.env, "snapshot", lambda: variables)
    monkeypatch.setattr(launchers.shutil, "which", lambda name: f"/usr/bin/{name}")
    calls.study = study([point(4, 9.0, variant=f"launcher={name}", runs=[9.0], threads=1) for name in names])

    values = launchers.run(SETUP).values

    assert calls[0][4:6] == ["--compare", f"launcher={','.join(names)}"]
    assert list(values) == names


def test_launchers_of_more_workers_than_cores_are_not_compared(calls):
    calls.study = study(
        [
            point(4, 9.0, variant=f"launcher={name}", runs=[9.0], threads=1, oversubscribed=True)
            for name in "ab"
        ]
    )
    measured = launchers.run(SETUP).measured

    assert "highest" not in measured
    assert f"-n {cpu_share().cores}" in measured


@pytest.mark.parametrize(("code", "out", "err"), [(1, "{}", "a\nb\n"), (0, "", ""), (3, "", "")])
def test_a_command_that_fails_is_an_error(code, out, err):
    with pytest.raises(WorkerFailed):
        parsed(["scale"], code, out, err)


def test_the_last_line_of_a_command_is_its_result():
    assert parsed(["scale"], 0, 'a line\n{"x": 1}\n', "") == {"x": 1}
