"""A shell completes verbs, options, and the names that are values."""

import pytest

from samestep.cli.main import run_command
from samestep.cli.options.declare import completing


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("r", ["run", "report"]),
        ("help r", ["run", "report"]),
        ("run --mode n", ["native"]),
        ("train fa", ["fashion-mnist"]),
        ("train --data ci", ["cifar10"]),
        ("train --sync b", ["bucketed"]),
        ("data check m", ["mnist"]),
        ("verify --end-by k", ["kill"]),
        ("bench step --sync flat,d", ["flat,ddp"]),
        ("lab ri", ["ring"]),
        ("lab start tr", ["trainer"]),
        ("run tra", []),  # the shell completes names of files
    ],
)
def test_words_are_completed(capsys, monkeypatch, line, words):
    monkeypatch.setenv("_SAMESTEP_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"samestep {line}")
    monkeypatch.setenv("COMP_CWORD", str(len(line.split())))
    with pytest.raises(SystemExit):
        run_command([])

    assert capsys.readouterr().out.split() == words


def test_a_list_is_completed_at_its_last_name():
    assert completing(["flat", "ddp", "exact"])("flat,") == ["flat,flat", "flat,ddp", "flat,exact"]
