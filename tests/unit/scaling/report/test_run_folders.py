"""Run folders of several numbers of workers become a study."""

import json
from pathlib import Path

import pytest

from samestep.base.errors import UsageError
from samestep.scaling.analysis.study import write_study
from samestep.scaling.report.sources import is_about_scaling, study_of
from support.clocked_runs import OWN, clocked, write
from support.run_folders import SESSION, run_folder, scaled_folder, write_lines
from support.studies import study


def test_speedup_and_parts_come_from_the_ranks_of_each_run(tmp_path):
    folders = [scaled_folder(tmp_path / f"w{n}", workers=n, step_s=0.012 / n + 0.002) for n in (1, 2, 4)]
    found = study_of(folders, bar=0.69)
    assert [point.workers for point in found.points] == [1, 2, 4]
    assert [point.speedup for point in found.points] == pytest.approx([1.0, 1.75, 2.8])
    assert {point.mode for point in found.points} == {"strong"}
    assert [point.global_batch for point in found.points] == pytest.approx([64, 64, 64])
    assert found.points[2].step_s["data"] == pytest.approx(0.001)
    assert found.points[2].worker_hours_per_epoch is not None
    assert found.target == "recipe digits"
    assert "first 5" in found.notes[0].text
    assert found.verdict.largest_worth == 4


def test_settings_are_those_common_to_all_runs_without_unknown_ones(tmp_path):
    folders = [scaled_folder(tmp_path / f"w{n}", workers=n) for n in (1, 2)]
    (folders[1] / "config.toml").write_text((folders[1] / "config.toml").read_text() + 'sync = "flat"\n')
    assert study_of(folders).settings == {
        "from": [str(folder) for folder in folders],
        "launchers": ["samestep"],
        "recipe": {"recipe": "digits", "lr": 0.1, "batch_size": 64},
    }
    scripts = [tmp_path / f"c{n}" for n in (1, 2)]
    for folder, workers in zip(scripts, (1, 2), strict=True):
        write(folder, clocked(workers, launcher=""))
    assert study_of(scripts).settings == {"from": [str(folder) for folder in scripts]}


def test_the_synchronization_algorithm_is_recorded_if_it_was_set(tmp_path):
    folders = [scaled_folder(tmp_path / f"w{n}", workers=n) for n in (1, 2)]
    assert [point.sync for point in study_of(folders).points] == ["", ""]
    for folder in folders:
        (folder / "config.toml").write_text((folder / "config.toml").read_text() + 'sync = "flat"\n')
    assert [point.sync for point in study_of(folders).points] == ["", "flat"]


def test_runs_of_one_number_are_repeats(tmp_path):
    folders = [
        scaled_folder(tmp_path / f"r{k}-{n}", workers=n, step_s=0.012 / n * (1 + k / 100))
        for n in (1, 2)
        for k in (0, 1)
    ]
    found = study_of(folders)
    assert [len(point.runs) for point in found.points] == [2, 2]
    assert found.points[1].speedup_low is not None


@pytest.mark.parametrize("again", ["w1", "../{}/w1", "latest"])
def test_a_folder_is_no_repeat_of_itself(tmp_path, again):
    folders = [scaled_folder(tmp_path / f"w{n}", workers=n) for n in (1, 2)]
    (tmp_path / "latest").symlink_to("w1")
    with pytest.raises(UsageError, match=f"{tmp_path.name}/w1: .* once"):
        study_of([*folders, tmp_path / again.format(tmp_path.name)])


def test_a_slow_rank_is_found(tmp_path):
    folders = [scaled_folder(tmp_path / f"w{n}", workers=n, step_s=0.012 / n, slow=1.5) for n in (1, 2)]
    losses = study_of(folders).points[1].losses
    assert losses[0].rank == 1


def test_time_between_steps_belongs_to_the_step_and_its_rate(tmp_path):
    """A step clock counts it too, so a training has the same rate in both."""
    folders = [scaled_folder(tmp_path / f"w{n}", workers=n, step_s=0.01 / n) for n in (1, 2)]
    for folder in folders:
        rows = [json.loads(line) for line in (folder / "ranks.jsonl").read_text().splitlines()]
        write_lines(folder / "ranks.jsonl", [row | {"other": 0.002} for row in rows])
    one, two = study_of(folders).points
    assert (one.samples_per_second, one.step_s["other"]) == pytest.approx((64 / 0.012, 0.002))
    assert two.speedup == pytest.approx(0.012 / 0.007)
    assert "other" in [loss.cause for loss in two.losses]


def test_steps_before_the_last_start_and_the_first_few_do_not_count(tmp_path):
    """The run was resumed at step 20 with other workers; the steps before count as another run."""
    one = scaled_folder(tmp_path / "one", workers=1, step_s=0.01)
    resumed = scaled_folder(tmp_path / "two", workers=2, step_s=0.005)
    rows = [json.loads(line) for line in (resumed / "ranks.jsonl").read_text().splitlines()]
    early = [row | {"samples_per_second": row["samples_per_second"] / 9} for row in rows if row["step"] <= 20]
    write_lines(resumed / "ranks.jsonl", early + [row for row in rows if row["step"] > 20])
    session = json.loads((resumed / "sessions.jsonl").read_text())
    write_lines(resumed / "sessions.jsonl", [session | {"world_size": 1}, session | {"step": 20}])
    assert study_of([one, resumed]).points[1].speedup == pytest.approx(2.0)


def test_a_window_that_was_not_finite_is_left_out(tmp_path):
    folders = [scaled_folder(tmp_path / f"w{n}", workers=n, step_s=0.01 / n) for n in (1, 2)]
    rows = [json.loads(line) for line in (folders[1] / "ranks.jsonl").read_text().splitlines()]
    bad = [row | ({"forward": None} if row["step"] == 20 else {}) for row in rows]
    write_lines(folders[1] / "ranks.jsonl", bad)
    assert study_of(folders).points[1].speedup == pytest.approx(2.0)


def test_clock_files_make_a_study(tmp_path):
    folders = [tmp_path / "one", tmp_path / "two"]
    half = {name: seconds / 2 for name, seconds in OWN.items()}
    write(folders[0], clocked(1, kind="native", argv=["/home/me/train.py", "--lr", "0.1"]))
    write(folders[1], clocked(2, own=half, comm=0.004))
    assert is_about_scaling(folders)
    found = study_of(folders)
    assert found.target == "train.py --lr 0.1"
    assert found.machine["hosts"] == ["a"]
    assert found.points[1].speedup == pytest.approx(0.096 / 0.052)
    assert found.points[1].exchange_s == pytest.approx(0.004)


def machine_of(folder, **cpu):
    """Write the cores of the first worker into a run folder."""
    (session,) = [json.loads(line) for line in (folder / "sessions.jsonl").read_text().splitlines()]
    session["provenance"]["machine"]["cpu"] = cpu
    write_lines(folder / "sessions.jsonl", [session])
    return folder


@pytest.mark.parametrize(
    ("cpu", "nodes", "expected"),
    [
        ({"allowed": [0, 1, 2, 3], "cores": 4, "machine": 4}, 1, False),
        ({"allowed": [0, 1, 2, 3], "cores": 2, "machine": 4}, 1, True),
        ({"allowed": [0, 1, 2, 3], "cores": 2, "machine": 4}, 2, False),
        ({"allowed": [0], "cores": 1, "machine": 4}, 1, False),
        ({}, 1, False),
    ],
    ids=["a core each", "hardware threads", "on two nodes", "bound separately", "unknown"],
)
def test_workers_of_a_run_folder_that_shared_cores_are_marked(tmp_path, monkeypatch, cpu, nodes, expected):
    monkeypatch.setitem(SESSION, "nodes", nodes)
    folders = [machine_of(scaled_folder(tmp_path / f"w{n}", workers=n), **cpu) for n in (1, 4)]
    assert [point.oversubscribed for point in study_of(folders).points] == [False, expected]


def test_workers_of_a_clocked_run_that_shared_cores_are_marked(tmp_path):
    folders = [tmp_path / "one", tmp_path / "eight"]
    for folder, workers in zip(folders, (1, 8), strict=True):
        write(folder, clocked(workers, processors=2, threads=4, cpus="0-1"))
    assert [point.oversubscribed for point in study_of(folders).points] == [False, True]


def test_a_study_file_is_read_and_concluded_with_another_efficiency(tmp_path):
    write_study(tmp_path / "study.json", study(bar=0.9))
    assert study_of([tmp_path]).verdict.largest_worth == 2
    assert study_of([tmp_path / "study.json"], bar=0.5).verdict.largest_worth == 8


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda at: [scaled_folder(at / "a"), scaled_folder(at / "b")], "1 worker:"),
        (lambda at: [at], r"config\.toml"),
        (lambda at: [scaled_folder(at / "a"), Path(__file__)], "is a file:"),
    ],
)
def test_paths_without_a_study_are_refused(tmp_path, make, message):
    with pytest.raises(UsageError, match=message):
        study_of(make(tmp_path))


@pytest.mark.parametrize("name", ["study.json", "times.csv"])
def test_a_missing_file_is_refused(tmp_path, name):
    assert is_about_scaling([tmp_path / name])
    with pytest.raises(UsageError, match=f"cannot read .*{name}: No such file"):
        study_of([tmp_path / name])


def test_a_run_without_records_of_its_ranks_is_refused(tmp_path):
    folder = run_folder(tmp_path / "run")
    (folder / "ranks.jsonl").unlink()
    with pytest.raises(UsageError, match=r"sessions\.jsonl or ranks\.jsonl"):
        study_of([folder])


def test_run_folders_are_not_about_scaling_by_themselves(tmp_path):
    folder = run_folder(tmp_path / "run")
    table = tmp_path / "times.csv"
    table.touch()
    clocked = tmp_path / "clocked"
    clocked.mkdir()
    (clocked / "rank-0.jsonl").touch()
    assert not is_about_scaling([folder])
    assert not is_about_scaling([folder, clocked])
    assert is_about_scaling([table])
    assert is_about_scaling([clocked])


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        ({"world_size": 0}, "size"),
        ({"launcher": []}, "launcher"),
        ({"provenance": {"machine": {"torch": 2}}}, "torch"),
    ],
)
def test_a_damaged_start_is_refused_by_its_file(tmp_path, damage, name):
    folders = [scaled_folder(tmp_path / f"w{n}", workers=n) for n in (1, 2)]
    write_lines(folders[1] / "sessions.jsonl", [SESSION | damage])
    with pytest.raises(UsageError, match=rf"w2/sessions\.jsonl is damaged: .*{name}"):
        study_of(folders)


def test_unknown_processors_of_a_start_are_unknown_in_the_study(tmp_path):
    folders = [scaled_folder(tmp_path / f"w{n}", workers=n) for n in (1, 2)]
    cpu = {"allowed": 2, "cores": "2", "machine": None}
    write_lines(folders[1] / "sessions.jsonl", [SESSION | {"provenance": {"machine": {"cpu": cpu}}}])
    assert study_of(folders).points[1].processors is None
