"""Templates in arguments are filled with numbers of workers and nodes."""

import pytest

from samestep.base.errors import UsageError
from samestep.scaling.sweep.plan import filled, operators


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
def test_an_expression_is_replaced_by_its_value(argument, becomes):
    assert filled([argument], workers=4, nodes=2) == [becomes]


@pytest.mark.parametrize(
    ("held", "becomes"),
    [
        ((2, 1), ["128", "64", "8", "4", "128", "1"]),
        ((4, 2), ["64", "128", "8", "4", "128", "2"]),
    ],
)
def test_held_arithmetic_uses_fewer_workers_and_plain_names_do_not(held, becomes):
    arguments = ["{256/n}", "{32*n}", "{n}", "{local}", "{256/local}", "{1*nodes}"]
    assert filled(arguments, workers=8, nodes=2, held=held) == becomes


def test_a_division_with_a_remainder_is_refused_with_both_numbers():
    with pytest.raises(UsageError, match=r"--batch-size=\{256/n\}: 256 .* n = 3"):
        filled(["--batch-size={256/n}"], workers=3)


@pytest.mark.parametrize("argument", ['{"a": 1}', "{batch}", "{n+1}", "{256/0}", "{", "a}b", "{}", "{n/2}"])
def test_invalid_templates_are_refused(argument):
    with pytest.raises(UsageError, match="is not a template"):
        filled([argument], workers=2)


def test_operators_are_those_of_the_arithmetic():
    assert operators(["train.py", "{n}", "{{a/n}}"]) == set()
    assert operators(["{256/n}", "{32*n}"]) == {"/", "*"}
