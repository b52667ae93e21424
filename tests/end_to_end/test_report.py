"""``samestep report``, as a user types it."""

import json
import re

from samestep.cli.main import run_command
from samestep.scaling.analysis.study import write_study
from support.run_folders import run_folder, scaled_folder
from support.studies import study


def test_one_run_gets_its_page_and_its_headline(tmp_path, capsys):
    folder = run_folder(tmp_path / "run")
    assert run_command(["report", str(folder)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("2 workers" if "2 workers" in out[0] else "3 workers")
    assert out[1] == f"page: {folder / 'report.html'}"


def test_several_runs_get_one_page(tmp_path, capsys):
    folders = [str(run_folder(tmp_path / name)) for name in ("one", "two")]
    page = tmp_path / "both.html"
    assert run_command(["report", *folders, "--page", str(page), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["page"] == str(page)
    assert list(said["runs"]) == ["one", "two"]
    assert "2 runs side by side" in page.read_text()


def test_a_missing_run_and_a_missing_folder_are_one_line_and_exit_code_2(tmp_path, capsys):
    for arguments in (
        ["report", str(tmp_path)],
        ["report", str(run_folder(tmp_path / "run")), "--page", "/nowhere/x"],
    ):
        assert run_command(arguments) == 2
        err = capsys.readouterr().err
        assert len(err.splitlines()) == 1
        assert err.startswith("samestep: error:")


def test_a_table_is_not_replaced_by_its_page(tmp_path, capsys):
    """Only this finds a table that is lost."""
    text = "workers,seconds\n1,10\n2,6\n"
    table, plain = tmp_path / "times.html", tmp_path / "times.csv"
    for path in (table, plain):
        path.write_text(text)
    assert run_command(["report", str(table)]) == 0
    assert run_command(["report", str(plain), "--page", str(plain)]) == 2
    assert (table.read_text(), plain.read_text()) == (text, text)
    assert (tmp_path / "times.html.html").is_file()
    assert "times.csv" in capsys.readouterr().err


def test_a_study_gets_its_table_and_a_page_beside_it(tmp_path, capsys):
    write_study(tmp_path / "study.json", study(bar=None))
    verdict = study(bar=0.5).verdict.sentence
    assert run_command(["report", str(tmp_path / "study.json"), "--worth", "0.5"]) == 0
    out = capsys.readouterr().out
    assert "4      7,950" in out
    assert verdict in out
    assert out.splitlines()[-1] == f"page: {tmp_path / 'report.html'}"
    assert re.search(r"Worth it [^?<]*50", (tmp_path / "report.html").read_text())


def test_four_run_folders_make_a_study(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [
        str(scaled_folder(tmp_path / f"w{n}", workers=n, step_s=0.04 / n + 0.01)) for n in (1, 2, 3, 4)
    ]
    assert run_command(["report", *folders, "--scaling", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [round(point["speedup"], 2) for point in said["study"]["points"]] == [1.0, 1.67, 2.14, 2.5]
    assert said["page"] == "report.html"
    assert (tmp_path / "report.html").exists()


def test_a_table_of_times_makes_a_study(tmp_path, capsys):
    table = tmp_path / "times.csv"
    table.write_text("workers,seconds\n1,100\n2,52\n4,30\n")
    assert run_command(["report", str(table), "--worth", "0.9"]) == 0
    assert "3.33x" in capsys.readouterr().out
    assert (tmp_path / "times.html").exists()


def test_arguments_that_give_no_study_are_one_line_and_exit_code_2(tmp_path, capsys):
    table = tmp_path / "times.csv"
    table.write_text("1,100\n2,soon\n")
    run = str(run_folder(tmp_path / "run"))
    for arguments, message in (
        ([str(table)], f"{table}, line 2: 'soon'"),
        ([run, "--worth", "0.7"], "--scaling"),
        ([str(table), "--worth", "70"], "--worth 70 "),
        ([run, "--scaling"], "3 workers"),
    ):
        assert run_command(["report", *arguments]) == 2
        err = capsys.readouterr().err
        assert len(err.splitlines()) == 1
        assert message in err


def test_a_training_writes_a_page(tmp_path, capsys):
    folder = tmp_path / "run"
    assert run_command(["train", "digits", "--epochs", "1", "--subset", "128", "--out", str(folder)]) == 0
    assert str(folder / "report.html") in capsys.readouterr().out
    assert "1 epoch, 2 steps" in (folder / "report.html").read_text()
