"""A report shows what the run folder holds, is self-contained, and escapes all text."""

import json
import os
import re
from pathlib import Path

import pytest

from samestep.base.errors import UsageError
from samestep.cli import report as verb
from samestep.report import read_run as read
from samestep.report.drawing import PARTS
from samestep.report.page import table, text_table, write_text
from samestep.report.read_run import PHASES, names, read_run
from samestep.report.run_page import differing, headline, hints, render, render_side_by_side, write_report
from support.html_page import HtmlPage
from support.run_folders import RESULT, run_folder, write_lines


def rendered(folder):
    text = render(read_run(folder))
    return text, HtmlPage(text)


def test_a_page_is_well_formed_and_self_contained(tmp_path):
    text, outline = rendered(run_folder(tmp_path / "run"))
    assert outline.refers == ["data:,"]
    assert "script" not in outline.tags
    assert not re.search(r"url\(|@import|https?://", text)
    assert outline.tags.count("figure") == 6


def test_a_flag_of_a_command_stays_on_one_line():
    cell = table([("command", "train.py -n 2 --dry-run a-b <x> -1")])
    assert re.findall('<span class="flag">(.*?)</span>', cell) == ["-n", "--dry-run"]
    assert HtmlPage(cell).texts[-1].endswith("a-b <x> -1")


def test_the_name_of_a_column_is_aligned_as_its_cells():
    rows = [("one", 2, "98.77%", 0.5), ("two", 1200, "", "not finished")]
    text = table(rows, head=("run", "workers", "accuracy", "loss"))
    aligned = [
        [bool(right) for right in re.findall("<t[hd][^>]*?( class=n)?>", row)]
        for row in text.split("<tr>")[1:]
    ]
    assert aligned == [[False, True, True, False]] * 3
    assert "1,200" in text


def test_names_of_columns_in_a_text_table_can_have_several_lines():
    lines = text_table(["a", "long\nname"], [["x", "1"], ["yy", "12"]])
    assert lines == ["    long", "a   name", "x      1", "yy    12"]


def test_text_from_files_is_escaped(tmp_path):
    folder = run_folder(tmp_path / "<b>bold</b>", config='recipe = "<img src=x onerror=y>"\n')
    text, outline = rendered(folder)
    assert not {"b", "img", "script"} & set(outline.tags)
    assert "<script>alert(1)</script>" in " ".join(outline.texts)
    assert "&lt;img src=x" in text


def test_the_page_shows_result_sessions_machine_settings_and_checkpoints(tmp_path):
    _, outline = rendered(run_folder(tmp_path / "run"))
    shown = " ".join(outline.texts)
    for part in ("98.77%", "2 epochs", "40 steps", "12.5 s", "from step-20", "node & co"):
        assert part in shown
    for part in ("step-40", "1.91 MiB", "batch_size", "3 workers", "backward (43%)", "2026-01-02T03:04:05"):
        assert part in shown


def test_the_command_is_quoted_as_a_shell_reads_it(tmp_path):
    _, outline = rendered(run_folder(tmp_path / "run"))

    assert "samestep train '<script>alert(1)</script>'" in outline.texts


def test_phases_have_the_colors_that_they_have_in_a_scaling_study(tmp_path):
    text, _ = rendered(run_folder(tmp_path / "run"))

    assert {PARTS[name][0] for name in PHASES} == set(re.findall(r'class="area (\w+)"', text))


def test_a_run_that_has_just_begun_has_a_page(tmp_path):
    (tmp_path / "config.toml").write_text("")
    text, _ = rendered(tmp_path)
    assert "0 steps" in text
    assert text.count('class="none"') == 6


@pytest.mark.parametrize(
    "missing", ["evaluations.jsonl", "ranks.jsonl", "sessions.jsonl", "result.json", "metrics.jsonl"]
)
def test_a_missing_file_is_left_out(tmp_path, missing):
    folder = run_folder(tmp_path / "run")
    (folder / missing).unlink()
    rendered(folder)


@pytest.mark.parametrize("steps", [1, 2, 3, 1000])
def test_any_number_of_steps_makes_a_page_of_bounded_size(tmp_path, steps):
    text, _ = rendered(run_folder(tmp_path / "run", steps=steps))
    assert len(text) < 120_000


def test_the_times_of_slow_steps_are_in_seconds(tmp_path):
    folder = run_folder(tmp_path / "run", data=2.345)
    pages = (rendered(folder)[0], render_side_by_side([read_run(folder)]))
    assert [re.findall(r"[\d.]+e\+\d+ ms", page) for page in pages] == [[], []]


def test_an_incomplete_last_line_is_ignored(tmp_path):
    folder = run_folder(tmp_path / "run")
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 41, "lo')
    assert read_run(folder).num_steps == 40


@pytest.mark.parametrize(
    ("name", "content", "names"),
    [
        ("metrics.jsonl", "nonsense\n", ["line 1"]),
        ("metrics.jsonl", '{"a": 1}\n', ["line 1", "step", "loss"]),
        ("metrics.jsonl", '{"step": 1, "loss": "low"}\n', ["line 1", "loss", "'low'"]),
        ("metrics.jsonl", '{"step": null, "loss": 1}\n', ["line 1", "step", "None"]),
        ("ranks.jsonl", '{"step": 1, "rank": 0, "samples_per_second": 1, "data": "?"}\n', ["data", "'?'"]),
        (
            "ranks.jsonl",
            '{"step": 1, "rank": 0, "samples_per_second": 1, "steps": null}\n',
            ["steps", "None"],
        ),
        (
            "evaluations.jsonl",
            '{"step": 1, "seconds": 1, "accuracy": 1, "loss": 1, "epoch": "?"}\n',
            ["epoch", "'?'"],
        ),
        ("sessions.jsonl", '{"step": 0, "world_size": 1, "nodes": [1]}\n', ["nodes", "[1]"]),
        ("result.json", '{"accuracy": 0.5}', ["epochs", "steps"]),
        ("result.json", json.dumps(RESULT | {"world_size": "2"}), ["world_size", "'2'"]),
        ("sessions.jsonl", "[]\n", ["line 1", "world_size"]),
        ("result.json", "[1]", []),
        ("config.toml", "= 3", []),
    ],
)
def test_a_damaged_file_is_refused_by_name_and_place(tmp_path, name, content, names):
    folder = run_folder(tmp_path / "run")
    (folder / name).write_text(content)
    with pytest.raises(UsageError) as error:
        read_run(folder)
    assert [one for one in (str(folder / name), *names) if one not in str(error.value)] == []


def test_a_folder_of_no_run_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"config\.toml"):
        read_run(tmp_path)


def codes(folder):
    return [hint.code for hint in hints(read_run(folder))]


def test_hints_name_each_problem_and_no_other(tmp_path):
    assert codes(run_folder(tmp_path / "well")) == []
    slow = run_folder(tmp_path / "slow", data=0.01, exposed_sync=0.02)
    assert codes(slow) == ["waiting-for-data", "exposed-communication"]


def test_a_loss_that_is_not_finite_and_a_slow_rank_are_hints(tmp_path):
    folder = run_folder(tmp_path / "run")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    write_lines(
        folder / "metrics.jsonl", [row | ({"loss": None} if row["step"] > 38 else {}) for row in rows]
    )
    ranks = [json.loads(line) for line in (folder / "ranks.jsonl").read_text().splitlines()]
    third = [row | {"rank": 2, "forward": 0.01, "backward": 0.01} for row in ranks if row["rank"] == 0]
    write_lines(folder / "ranks.jsonl", ranks + third)

    not_finite, slow = hints(read_run(folder))

    assert (not_finite.code, slow.code, slow.rank) == ("loss-not-finite", "slow-rank", 2)
    assert "2 steps" in not_finite.message
    assert "50%" in slow.message
    assert slow.message in " ".join(rendered(folder)[1].texts)


def changed(folder, name, **values):
    """Write `values` into every row of a file of the run in `folder`."""
    rows = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    write_lines(folder / name, [row | values for row in rows])


def test_numbers_that_are_not_finite_are_left_out_of_curves(tmp_path):
    well, ill = run_folder(tmp_path / "well"), run_folder(tmp_path / "ill")
    changed(ill, "evaluations.jsonl", loss=None, accuracy=None, train_loss=None)
    changed(ill, "ranks.jsonl", samples_per_second=None, forward=None)
    result = json.loads((ill / "result.json").read_text())
    (ill / "result.json").write_text(json.dumps(result | {"loss": None, "samples_per_second": None}))
    pages = render(read_run(ill)), render_side_by_side([read_run(well), read_run(ill)])
    for page in pages:
        drawn = [value for value in re.findall(r' (?:d|cx|cy)="([^"]*)"', page) if "nan" in value]
        assert drawn == []
        assert "None" not in HtmlPage(page).texts


def test_a_rank_is_compared_with_the_others_since_the_last_start_only(tmp_path):
    """After a resume with five workers, each worker has a smaller share than before."""
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
    assert codes(folder) == []


def test_the_headline_of_an_unfinished_run_has_its_progress(tmp_path):
    run = read_run(run_folder(tmp_path / "run", finished=False))
    for part in ("3 workers", "40 steps", "88.89%"):
        assert part in headline(run)


def test_the_page_is_written_into_the_folder(tmp_path):
    folder = run_folder(tmp_path / "run")
    assert write_report(folder) == folder / "report.html"
    assert (folder / "report.html").read_text().startswith("<!doctype html>")


def test_a_folder_with_a_name_that_is_not_utf_8_has_a_page(tmp_path):
    page = write_report(run_folder(tmp_path / os.fsdecode(b"run-\xe9")))
    assert "run-\\udce9" in page.read_text(encoding="utf-8")


def test_compared_runs_show_their_differences(tmp_path):
    folders = [
        run_folder(tmp_path / "one"),
        run_folder(tmp_path / "two", config='recipe = "digits"\nlr = 0.2\nbatch_size = 64\n', finished=False),
    ]
    runs = [read_run(folder) for folder in folders]
    outline = HtmlPage(render_side_by_side(runs))
    assert differing(runs) == [("lr", "0.1", "0.2")]
    assert outline.tags.count("figure") == 4
    assert "not finished" in " ".join(outline.texts)


@pytest.mark.parametrize("out", [".", "..", "there"])
def test_a_page_does_not_replace_a_folder(tmp_path, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    with pytest.raises(UsageError, match=r"folder.* --page"):
        write_text(Path(out), "page")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_a_page_that_cannot_be_written_leaves_no_file(tmp_path, monkeypatch):
    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(UsageError, match="No space left"):
        write_text(tmp_path / "page.html", "page")
    assert list(tmp_path.iterdir()) == []


def test_runs_of_the_same_name_are_named_by_their_paths(tmp_path, monkeypatch, capsys):
    folders = [run_folder(tmp_path / name) for name in ("a/run", "b/run", "other")]
    runs = [read_run(folder) for folder in folders]
    assert names(runs) == [str(folders[0]), str(folders[1]), "other"]
    assert str(folders[1]) in HtmlPage(render_side_by_side(runs)).texts
    verb.report(folders, page=tmp_path / "all.html", as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert list(report["runs"]) == list(report["hints"]) == names(runs)


def test_json_shows_the_codes_of_hints(tmp_path, capsys):
    verb.report([run_folder(tmp_path / "run", data=0.01)], page=tmp_path / "page.html", as_json=True)
    (found,) = json.loads(capsys.readouterr().out)["hints"].values()
    assert [hint["code"] for hint in found] == ["waiting-for-data"]


def test_each_run_is_read_once(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(read, "_toml", lambda path: asked.append(path.parent) or {})
    folders = [run_folder(tmp_path / name) for name in ("one", "two")]
    verb.report(folders, page=tmp_path / "both.html", as_json=True)
    assert asked == folders


def test_a_checkpoint_that_disappears_while_it_is_read_is_left_out(tmp_path):
    folder = run_folder(tmp_path / "run")
    going = folder / "checkpoints" / "step-20"
    going.mkdir()
    (going / "manifest.json").write_text("{}")
    (going / "model.safetensors").symlink_to(going / "gone")
    assert [one.name for one in read_run(folder).checkpoints] == ["step-40"]


def test_a_checkpoint_that_cannot_be_read_is_shown_as_such(tmp_path):
    folder = run_folder(tmp_path / "run")
    loop = folder / "checkpoints" / "step-50"
    loop.symlink_to(loop)  # fails for root too

    found = read_run(folder).checkpoints

    assert [(one.name, one.num_bytes is None) for one in found] == [("step-40", False), ("step-50", True)]
    assert "cannot be read" in render(read_run(folder))
