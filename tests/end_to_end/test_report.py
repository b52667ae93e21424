"""``samestep report``, as a user types it."""

import json

from samestep.cli.main import run_command
from support.run_folders import run_folder


def test_one_run_gets_its_page_and_its_headline(tmp_path, capsys):
    folder = run_folder(tmp_path / "run")
    assert run_command(["report", str(folder)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("2 workers" if "2 workers" in out[0] else "3 workers")
    assert out[1] == f"page: {folder / 'report.html'}"


def test_several_runs_get_one_page_together(tmp_path, capsys):
    folders = [str(run_folder(tmp_path / name)) for name in ("one", "two")]
    page = tmp_path / "both.html"
    assert run_command(["report", *folders, "--out", str(page), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["page"] == str(page)
    assert list(said["runs"]) == ["one", "two"]
    assert "2 runs side by side" in page.read_text()


def test_what_is_no_run_is_one_line_and_exit_code_2(tmp_path, capsys):
    for arguments in (
        ["report", str(tmp_path)],
        ["report", str(run_folder(tmp_path / "run")), "--out", "/nowhere/x"],
    ):
        assert run_command(arguments) == 2
        err = capsys.readouterr().err
        assert len(err.splitlines()) == 1
        assert err.startswith("samestep: error:")


def test_a_training_leaves_a_page(tmp_path, capsys):
    folder = tmp_path / "run"
    assert run_command(["train", "digits", "--epochs", "1", "--subset", "128", "--out", str(folder)]) == 0
    assert f"as a picture: {folder / 'report.html'}" in capsys.readouterr().out
    assert "of the test set right after 1 epoch, 2 steps" in (folder / "report.html").read_text()
