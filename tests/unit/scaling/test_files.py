"""A study is read as it was written, or said to be damaged where it is."""

import json
import math
from dataclasses import replace

import pytest

from samestep.base.errors import UsageError
from samestep.scaling.conclude import conclude
from samestep.scaling.files import as_json, read_study, write_study
from samestep.scaling.measured import measured
from samestep.scaling.study import Study
from support.clocked_runs import OWN, clocked


def study() -> Study:
    runs = [
        clocked(workers, exchange=0.004 * (workers > 1), seed=seed, noise=0.1)
        for seed in range(3)
        for workers in (1, 2, 4)
    ]
    slow = dict(OWN, data=0.020)
    runs.append(clocked(8, own=[OWN] * 7 + [slow]))
    return conclude(Study(target="digits", machine={"hosts": ["a"]}, points=measured(runs)), bar=0.7)


def test_what_was_written_is_read(tmp_path):
    write_study(tmp_path / "study.json", study())

    assert read_study(tmp_path / "study.json") == study()
    assert read_study(tmp_path) == study()


def test_a_study_without_a_point_is_one(tmp_path):
    write_study(tmp_path / "study.json", conclude(Study(target="digits")))

    assert read_study(tmp_path).verdict is None


def test_json_has_the_fields_that_are_promised():
    point = json.loads(json.dumps(as_json(study())))["points"][1]

    assert point["step_s"].keys() >= {"data", "forward", "backward", "exposed_sync", "optimizer", "other"}
    assert point["timeline"][0][0] == ["other", 0.0, 0.001]


def test_what_a_later_version_adds_is_left_alone(tmp_path):
    file = tmp_path / "study.json"
    told = as_json(study())
    told["points"][0]["phase_of_the_moon"] = 0.5
    file.write_text(json.dumps(told))

    assert read_study(file) == study()


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("points", 1, "workers"), True, "study.points[1].workers is not a whole number"),
        (("points", 1, "mode"), "odd", "study.points[1].mode is not one of strong, weak, neither"),
        (("points", 0, "timeline", 0, 0), ["data", 1.0], "study.points[0].timeline[0][0] is not a list of"),
        (("points", 2, "step_s", "data"), "x", "study.points[2].step_s.data is not a number"),
        (("points", 0, "runs"), 3, "study.points[0].runs is not a list"),
        (("points", 0, "oversubscribed"), 0, "study.points[0].oversubscribed is not true or false"),
        (("fit", 0), None, "study.fit[0] is not an object"),
        (("target",), 7, "study.target is not text"),
        (("points", 0, "samples_per_second"), math.nan, "study.points[0].samples_per_second is not a number"),
        (("points", 0, "samples_per_second"), -3.0, "study.points[0].samples_per_second is not above 0"),
        (("points", 1, "workers"), 0, "study.points[1].workers is not above 0"),
        (("points", 1, "runs", 2), 0.0, "study.points[1].runs[2] is not above 0"),
        (("points", 1, "speedup_low"), -1.0, "study.points[1].speedup_low is not above 0"),
        (("points", 1, "exchange_bytes"), 0, "study.points[1].exchange_bytes is not above 0"),
        (("points", 1, "step_s", "data"), -0.1, "study.points[1].step_s.data is not a time"),
        pytest.param(
            ("points", 0, "samples_per_second"),
            10**400,
            "study.points[0].samples_per_second is not a number",
            id="a rate without end",
        ),
        pytest.param(
            ("points", 0, "workers"),
            10**400,
            "study.points[0].workers is not a whole number",
            id="workers without end",
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
def test_damage_is_named(tmp_path, path, value, said):
    file = tmp_path / "study.json"
    told = place = json.loads(json.dumps(as_json(study())))
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    file.write_text(json.dumps(told))

    with pytest.raises(UsageError) as caught:
        read_study(file)

    assert str(caught.value).startswith(f"{file} is damaged: {said}")


def test_what_is_missing_is_named(tmp_path):
    file = tmp_path / "study.json"
    told = as_json(study())
    del told["points"][1]["speedup"]
    file.write_text(json.dumps(told))

    with pytest.raises(UsageError, match=r"study\.points\[1\] lacks speedup"):
        read_study(file)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is no JSON"),
        pytest.param("[" * 100_000, "is no JSON", id="too deep"),
        ("[]", "lacks format or points"),
        ('{"format": 2, "points": []}', "is of format 2; this version of samestep reads 1"),
    ],
)
def test_what_is_no_study_is_said_so(tmp_path, text, said):
    (tmp_path / "study.json").write_text(text)

    with pytest.raises(UsageError, match=said):
        read_study(tmp_path)


def test_no_file_and_no_place_for_one(tmp_path):
    with pytest.raises(UsageError, match="cannot read"):
        read_study(tmp_path)
    with pytest.raises(UsageError, match="cannot write"):
        write_study(tmp_path / "nowhere" / "study.json", replace(study(), notes=()))


def test_half_a_study_is_not_left_where_it_cannot_be_written(tmp_path):
    (tmp_path / "study.json").mkdir()

    with pytest.raises(UsageError, match="cannot write"):
        write_study(tmp_path / "study.json", study())

    assert [path.name for path in tmp_path.iterdir()] == ["study.json"]
