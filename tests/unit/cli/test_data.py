"""``samestep data`` lists, fetches and checks data sets."""

import json

import pytest

from samestep.cli.main import run_command
from samestep.training.data.sets.registry import DATA_SETS
from support.data import shared_data


def test_every_data_set_is_listed_with_its_place(capsys, tmp_path):
    assert run_command(["data", "list", "--data-dir", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[: len(DATA_SETS)]] == list(DATA_SETS)
    assert lines[0].endswith("embedded")
    assert lines[1].endswith("samestep data fetch mnist")


def test_a_copy_is_found_and_checked(capsys):
    folder = str(shared_data("mnist"))
    assert run_command(["data", "list", "--data-dir", folder, "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["data"]}
    assert rows["mnist"]["where"].endswith("mnist")

    assert run_command(["data", "check", "mnist", "--data-dir", folder]) == 0
    assert capsys.readouterr().out.startswith("mnist: 60,000 + 10,000 images of 1 x 28 x 28; ")


def test_a_bundled_data_set_need_not_be_fetched(capsys):
    assert run_command(["data", "fetch", "digits", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes"] == 0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["check"], "NAME"),
        (["fetch", "synthetic"], "'synthetic'"),
        (["check", "cats"], "'cats'"),
        (["check", "cifar10", "--data-dir", "nowhere"], "--data-dir nowhere"),
        (["bake", "digits"], "'bake'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, named, capsys):
    assert run_command(["data", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert named in err
    assert len(err.splitlines()) == 1
