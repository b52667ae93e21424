"""``samestep data``: what is where, brought and checked."""

import json

import pytest

from samestep.cli.main import run_command
from samestep.data.registry import DATA_SETS
from support.data import shared_data


def test_every_data_set_is_listed_with_where_it_lies(capsys, tmp_path):
    assert run_command(["data", "list", "--data-dir", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[: len(DATA_SETS)]] == list(DATA_SETS)
    assert lines[0].endswith("embedded")
    assert lines[1].endswith("not here: samestep data fetch mnist")


def test_a_copy_is_found_and_checked(capsys):
    folder = str(shared_data("mnist"))
    assert run_command(["data", "list", "--data-dir", folder, "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["data"]}
    assert rows["mnist"]["where"].endswith("mnist")

    assert run_command(["data", "check", "mnist", "--data-dir", folder]) == 0
    assert capsys.readouterr().out.startswith(
        "mnist: 60,000 + 10,000 images of 1 x 28 x 28; whole, as published, in"
    )


def test_what_comes_along_need_not_be_fetched(capsys):
    assert run_command(["data", "fetch", "digits"]) == 0
    assert capsys.readouterr().out == "digits: 3,823 + 1,797 images, 8 x 8 grayscale; comes along\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check"], "samestep data check needs a NAME"),
        (["fetch", "synthetic"], "'synthetic' is none of those that can be fetched"),
        (["check", "cats"], "no data set 'cats'"),
        (["check", "cifar10", "--data-dir", "nowhere"], "--data-dir nowhere is not a folder"),
        (["bake", "digits"], "'bake'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, message, capsys):
    assert run_command(["data", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert len(err.splitlines()) == 1
