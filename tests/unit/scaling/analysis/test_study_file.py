"""A study is read as it was written, or refused with the place of the damage."""

import json
import math
from dataclasses import asdict, replace

import pytest

from samestep.base.errors import UsageError
from samestep.scaling.analysis.points import measured
from samestep.scaling.analysis.study import Study, read_study, write_study
from samestep.scaling.analysis.verdict import conclude
from support.clocked_runs import OWN, clocked


def study() -> Study:
    runs = [
        clocked(workers, comm=0.004 * (workers > 1), seed=seed, noise=0.1)
        for seed in range(3)
        for workers in (1, 2, 4)
    ]
    slow = dict(OWN, data=0.020)
    runs.append(clocked(8, own=[OWN] * 7 + [slow]))
    return conclude(Study(target="digits", machine={"hosts": ["a"]}, points=measured(runs)), bar=0.7)


def test_a_written_study_is_read(tmp_path):
    write_study(tmp_path / "study.json", study())

    assert read_study(tmp_path / "study.json") == study()
    assert read_study(tmp_path) == study()


def test_a_study_without_a_point_is_valid(tmp_path):
    write_study(tmp_path / "study.json", conclude(Study(target="digits")))

    assert read_study(tmp_path).verdict is None


def test_json_has_the_documented_fields():
    point = json.loads(json.dumps(asdict(study())))["points"][1]

    assert point["step_s"].keys() >= {"data", "forward", "backward", "exposed_sync", "optimizer", "other"}
    assert point["timeline"][0][0] == ["other", 0.0, 0.001]


def test_fields_of_a_later_version_are_ignored(tmp_path):
    file = tmp_path / "study.json"
    content = asdict(study())
    content["points"][0]["phase_of_the_moon"] = 0.5
    file.write_text(json.dumps(content))

    assert read_study(file) == study()


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (("points", 1, "workers"), True, "study.points[1].workers is not an integer"),
        (("points", 1, "mode"), "odd", "study.points[1].mode is not one of strong, weak, neither"),
        (("points", 0, "timeline", 0, 0), ["data", 1.0], "study.points[0].timeline[0][0] is not a list of"),
        (("points", 2, "step_s", "data"), "x", "study.points[2].step_s.data is not a number"),
        (("points", 0, "runs"), 3, "study.points[0].runs is not a list"),
        (("points", 0, "oversubscribed"), 0, "study.points[0].oversubscribed is not true or false"),
        (("verdict", "worth", 0), None, "study.verdict.worth[0] is not an object"),
        (("target",), 7, "study.target is not a string"),
        (("points", 0, "samples_per_second"), math.nan, "study.points[0].samples_per_second is not a number"),
        (("points", 0, "samples_per_second"), -3.0, "study.points[0].samples_per_second is not above 0"),
        (("points", 1, "workers"), 0, "study.points[1].workers is not above 0"),
        (("points", 1, "runs", 2), 0.0, "study.points[1].runs[2] is not above 0"),
        (("points", 1, "speedup_low"), -1.0, "study.points[1].speedup_low is not above 0"),
        (("points", 1, "exchange_bytes"), 0, "study.points[1].exchange_bytes is not above 0"),
        (("points", 1, "step_s", "data"), -0.1, "study.points[1].step_s.data is negative"),
        pytest.param(
            ("points", 0, "samples_per_second"),
            10**400,
            "study.points[0].samples_per_second is not a number",
            id="infinite rate",
        ),
        pytest.param(
            ("points", 0, "workers"),
            10**400,
            "study.points[0].workers is not an integer",
            id="infinite workers",
        ),
        (("points", 0, "nodes"), 0, "study.points[0].nodes is not above 0"),
        (("points", 1, "global_batch"), 0, "study.points[1].global_batch is not above 0"),
        (("points", 1, "step_s"), {"forward": 0.1}, "study.points[1].step_s lacks data, to_device, backward"),
        (
            ("points", 1, "ranks", 1, "step_s"),
            {"data": 0.1},
            "study.points[1].ranks[1].step_s lacks to_device",
        ),
        (
            ("points", 1, "timeline"),
            [[["forward", 0, 1]]],
            "study.points[1].timeline is of 1 workers, and the point of 2",
        ),
        (
            ("points", 1, "timeline", 0, 0),
            ["foo", 0, 1],
            "study.points[1].timeline[0][0] is not one of data, to_device, forward",
        ),
        (("points",), [], "study has a verdict and no points"),
    ],
)
def test_damage_is_named(tmp_path, path, value, problem):
    file = tmp_path / "study.json"
    content = place = json.loads(json.dumps(asdict(study())))
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    file.write_text(json.dumps(content))

    with pytest.raises(UsageError) as caught:
        read_study(file)

    assert str(caught.value).startswith(f"{file} is damaged: {problem}")


def test_a_missing_field_is_named(tmp_path):
    file = tmp_path / "study.json"
    content = asdict(study())
    del content["points"][1]["speedup"]
    file.write_text(json.dumps(content))

    with pytest.raises(UsageError, match=r"study\.points\[1\] lacks speedup"):
        read_study(file)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is not JSON"),
        pytest.param("[" * 100_000, "is not JSON", id="too deep"),
        ("[]", "lacks format or points"),
        ('{"format": 1, "points": []}', "is of format 1, .* reads 2"),
    ],
)
def test_a_file_that_is_not_a_study_is_refused(tmp_path, text, problem):
    (tmp_path / "study.json").write_text(text)

    with pytest.raises(UsageError, match=problem):
        read_study(tmp_path)


def test_a_missing_file_and_a_missing_folder_are_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot read"):
        read_study(tmp_path)
    with pytest.raises(UsageError, match="cannot write"):
        write_study(tmp_path / "nowhere" / "study.json", replace(study(), notes=()))


def test_a_failed_write_leaves_no_file(tmp_path):
    (tmp_path / "study.json").mkdir()

    with pytest.raises(UsageError, match="cannot write"):
        write_study(tmp_path / "study.json", study())

    assert [path.name for path in tmp_path.iterdir()] == ["study.json"]
