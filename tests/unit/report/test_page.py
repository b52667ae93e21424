"""A report tells what the run folder holds, needs nothing else, and trusts no text in it."""

import json
import re
from pathlib import Path

import pytest

from samestep.base.errors import UsageError
from samestep.cli import report as verb
from samestep.report import compare, read
from samestep.report.read import names, read_run
from samestep.report.run_page import render, write_report
from samestep.report.words import headline, hints
from samestep.report.write import write_text
from support.outline import Outline
from support.run_folders import run_folder, write_lines


def rendered(folder):
    text = render(read_run(folder))
    return text, Outline(text)


def test_a_page_is_well_formed_and_needs_nothing_else(tmp_path):
    text, outline = rendered(run_folder(tmp_path / "run"))
    assert outline.refers == ["data:,"]
    assert "script" not in outline.tags
    assert not re.search(r"url\(|@import|https?://", text)
    assert outline.tags.count("figure") == 6


def test_what_the_files_hold_is_text_and_nothing_else(tmp_path):
    folder = run_folder(tmp_path / "<b>bold</b>", config='recipe = "<img src=x onerror=y>"\n')
    text, outline = rendered(folder)
    assert not {"b", "img", "script"} & set(outline.tags)
    assert "<script>alert(1)</script>" in " ".join(outline.texts)
    assert "&lt;img src=x" in text


def test_the_page_tells_result_sessions_machine_settings_and_checkpoints(tmp_path):
    _, outline = rendered(run_folder(tmp_path / "run"))
    said = " ".join(outline.texts)
    for part in (
        "98.77% of the test set right",
        "2 epochs, 40 steps, 12.5 s",
        "went on from step-20",
        "node & co",
    ):
        assert part in said
    for part in ("step-40", "1.91 MiB", "batch_size", "3 workers", "backward (43%)", "2026-01-02T03:04:05"):
        assert part in said


def test_a_run_that_has_just_begun_has_a_page(tmp_path):
    (tmp_path / "config.toml").write_text("")
    text, outline = rendered(tmp_path)
    assert "not finished; 0 steps taken; no step was taken" in text
    assert " ".join(outline.texts).count("Nothing yet.") == 6


@pytest.mark.parametrize(
    "missing", ["evaluations.jsonl", "ranks.jsonl", "sessions.jsonl", "result.json", "metrics.jsonl"]
)
def test_a_file_that_is_not_there_is_left_out(tmp_path, missing):
    folder = run_folder(tmp_path / "run")
    (folder / missing).unlink()
    rendered(folder)


@pytest.mark.parametrize("steps", [1, 2, 3, 1000])
def test_any_number_of_steps_makes_a_page_of_bounded_size(tmp_path, steps):
    text, _ = rendered(run_folder(tmp_path / "run", steps=steps))
    assert len(text) < 120_000


def test_a_half_written_last_line_is_left_out(tmp_path):
    folder = run_folder(tmp_path / "run")
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 41, "lo')
    assert read_run(folder).num_steps == 40


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("metrics.jsonl", "nonsense\n", "metrics.jsonl is damaged: line 1 is no JSON"),
        ("metrics.jsonl", '{"a": 1}\n', "metrics.jsonl is of something else: line 1 lacks step, loss"),
        ("metrics.jsonl", '{"step": 1, "loss": "low"}\n', "line 1 holds what is no number"),
        ("metrics.jsonl", '{"step": null, "loss": 1}\n', "line 1 holds what is no number"),
        ("ranks.jsonl", '{"step": 1, "rank": 0, "samples_per_second": 1, "data": "?"}\n', "no number"),
        ("result.json", '{"accuracy": 0.5}', "result.json is of something else: it lacks epochs, steps"),
        ("sessions.jsonl", "[]\n", "sessions.jsonl is of something else"),
        ("result.json", "[1]", "result.json is damaged"),
        ("config.toml", "= 3", "config.toml is damaged"),
    ],
)
def test_damage_is_named_by_file(tmp_path, name, content, message):
    folder = run_folder(tmp_path / "run")
    (folder / name).write_text(content)
    with pytest.raises(UsageError, match=message):
        read_run(folder)


def test_a_foreign_folder_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"is no run folder: there is no config\.toml in it"):
        read_run(tmp_path)


def test_hints_say_what_is_off_and_nothing_else(tmp_path):
    assert hints(read_run(run_folder(tmp_path / "well"))) == []
    slow = read_run(run_folder(tmp_path / "slow", data=0.01, exposed_sync=0.02))
    assert [hint.split(" of a step is ")[1].split(":")[0] for hint in hints(slow)] == [
        "waiting for data",
        "waiting for the exchange of gradients",
    ]


def test_a_loss_that_is_not_finite_and_a_slow_rank_are_told(tmp_path):
    folder = run_folder(tmp_path / "run")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    write_lines(
        folder / "metrics.jsonl", [row | ({"loss": None} if row["step"] > 38 else {}) for row in rows]
    )
    ranks = [json.loads(line) for line in (folder / "ranks.jsonl").read_text().splitlines()]
    third = [row | {"rank": 2, "forward": 0.01, "backward": 0.01} for row in ranks if row["rank"] == 0]
    write_lines(folder / "ranks.jsonl", ranks + third)

    not_finite, slow = hints(read_run(folder))

    assert not_finite.startswith("The loss was not finite in 2 steps")
    assert slow.startswith("Rank 2 computes at 50% of the usual speed")
    rendered(folder)


def changed(folder, name, **values):
    """Write `values` into every row of a file of the run in `folder`."""
    rows = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    write_lines(folder / name, [row | values for row in rows])


def test_figures_that_were_not_finite_are_left_out_of_curves_also_side_by_side(tmp_path):
    well, ill = run_folder(tmp_path / "well"), run_folder(tmp_path / "ill")
    changed(ill, "evaluations.jsonl", loss=None, accuracy=None, train_loss=None)
    changed(ill, "ranks.jsonl", samples_per_second=None, forward=None)
    result = json.loads((ill / "result.json").read_text())
    (ill / "result.json").write_text(json.dumps(result | {"loss": None, "samples_per_second": None}))
    pages = render(read_run(ill)), compare.render([read_run(well), read_run(ill)])
    for page in pages:
        drawn = [value for value in re.findall(r' (?:d|cx|cy)="([^"]*)"', page) if "nan" in value]
        assert drawn == []
        assert "None" not in Outline(page).texts


def test_a_rank_is_compared_with_the_others_since_the_last_start_only(tmp_path):
    """Gone on with five workers, each has a smaller share than the two before had."""
    folder = run_folder(tmp_path / "run")
    before = [
        {"step": k, "rank": rank, "samples_per_second": 1.0, "forward": 0.008, "backward": 0.012}
        for k in range(5, 21, 5)
        for rank in (0, 1)
    ]
    after = [
        row | {"step": step, "rank": rank, "forward": 0.004, "backward": 0.006}
        for row, step in zip(before, (25, 30), strict=False)
        for rank in range(5)
    ]
    write_lines(folder / "ranks.jsonl", before + after)
    assert hints(read_run(folder)) == []


def test_an_unfinished_run_says_how_far_it_is(tmp_path):
    run = read_run(run_folder(tmp_path / "run", finished=False))
    assert headline(run).startswith(
        "3 workers: not finished; 40 steps taken, 88.89% of the test set right so far;"
    )


def test_the_page_is_written_into_the_folder(tmp_path):
    folder = run_folder(tmp_path / "run")
    assert write_report(folder) == folder / "report.html"
    assert (folder / "report.html").read_text().startswith("<!doctype html>")


def test_runs_side_by_side_show_what_differs(tmp_path):
    folders = [
        run_folder(tmp_path / "one"),
        run_folder(tmp_path / "two", config='recipe = "digits"\nlr = 0.2\nbatch_size = 64\n', finished=False),
    ]
    runs = [read_run(folder) for folder in folders]
    outline = Outline(compare.render(runs))
    assert compare.differing(runs) == [("lr", "0.1", "0.2")]
    assert outline.tags.count("figure") == 4
    assert "not finished" in " ".join(outline.texts)


@pytest.mark.parametrize("out", [".", "..", "there"])
def test_a_page_is_not_written_over_a_folder(tmp_path, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    with pytest.raises(UsageError, match=r"it is a folder\. Name a file, such as --out"):
        write_text(Path(out), "page")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_a_page_that_cannot_be_put_in_place_leaves_nothing(tmp_path, monkeypatch):
    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(UsageError, match="No space left"):
        write_text(tmp_path / "page.html", "page")
    assert list(tmp_path.iterdir()) == []


def test_runs_of_the_same_name_are_called_by_their_paths(tmp_path, monkeypatch, capsys):
    folders = [run_folder(tmp_path / name) for name in ("a/run", "b/run", "other")]
    runs = [read_run(folder) for folder in folders]
    assert names(runs) == [str(folders[0]), str(folders[1]), "other"]
    assert str(folders[1]) in Outline(compare.render(runs)).texts
    verb.report(folders, out=tmp_path / "all.html", as_json=True)
    assert list(json.loads(capsys.readouterr().out)["runs"]) == names(runs)


def test_each_run_is_read_once(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(read, "_toml", lambda path: asked.append(path.parent) or {})
    folders = [run_folder(tmp_path / name) for name in ("one", "two")]
    verb.report(folders, out=tmp_path / "both.html", as_json=True)
    assert asked == folders


def test_a_checkpoint_that_goes_while_it_is_looked_at_is_left_out(tmp_path):
    folder = run_folder(tmp_path / "run")
    going = folder / "checkpoints" / "step-20"
    going.mkdir()
    (going / "manifest.json").write_text("{}")
    (going / "model.safetensors").symlink_to(going / "gone")
    assert [one.name for one in read_run(folder).checkpoints] == ["step-40"]


def test_a_checkpoint_that_cannot_be_read_is_no_reason_against_the_page(tmp_path):
    folder = run_folder(tmp_path / "run")
    loop = folder / "checkpoints" / "step-50"
    loop.symlink_to(loop)  # even for a user who may read everything

    found = read_run(folder).checkpoints

    assert [(one.name, one.num_bytes is None) for one in found] == [("step-40", False), ("step-50", True)]
    assert "cannot be read" in render(read_run(folder))
