"""Arguments that depend on the number of workers."""

import pytest

from samestep.base.errors import UsageError
from samestep.trials.template import filled, operators


def test_templates_become_numbers_of_workers_and_nodes():
    arguments = ["--devices={local}", "--num-nodes", "{nodes}", "--tag=run-{n}", "--batch-size", "{256/n}"]

    assert filled(arguments, workers=8, nodes=2) == [
        *("--devices=4", "--num-nodes", "2", "--tag=run-8", "--batch-size", "32")
    ]


@pytest.mark.parametrize(
    ("argument", "becomes"),
    [
        ("{32*n}", "128"),
        ("{n*32}", "128"),
        ("{ 256 / local }", "128"),
        ("{{n}}", "{n}"),
        ('{{"a": {n}}}', '{"a": 4}'),
    ],
)
def test_a_template_becomes(argument, becomes):
    assert filled([argument], workers=4, nodes=2) == [becomes]


@pytest.mark.parametrize(
    ("held", "becomes"),
    [
        ((2, 1), ["128", "64", "8", "4", "128", "1"]),
        ((4, 2), ["64", "128", "8", "4", "128", "2"]),
    ],
)
def test_held_arithmetic_is_that_of_fewer_workers_and_plain_names_are_not(held, becomes):
    arguments = ["{256/n}", "{32*n}", "{n}", "{local}", "{256/local}", "{1*nodes}"]
    assert filled(arguments, workers=8, nodes=2, held=held) == becomes


def test_a_division_that_is_not_whole_is_refused_with_both_numbers():
    with pytest.raises(UsageError, match=r"--batch-size=\{256/n\}: 256 cannot be divided evenly by n = 3"):
        filled(["--batch-size={256/n}"], workers=3)


@pytest.mark.parametrize("argument", ['{"a": 1}', "{batch}", "{n+1}", "{256/0}", "{", "a}b", "{}", "{n/2}"])
def test_what_is_no_template_is_refused_before_anything_runs(argument):
    with pytest.raises(UsageError, match="A brace that is meant as such is doubled"):
        filled([argument], workers=2)


def test_operators_tell_what_a_batch_size_does():
    assert operators(["train.py", "{n}", "{{a/n}}"]) == set()
    assert operators(["{256/n}", "{32*n}"]) == {"/", "*"}
