"""The table of the tutorials' items is complete, and its lines are compared as its page states."""

import re

import pytest

from samestep_lab.experiments.registry import EXPERIMENTS
from support.tutorial_items import PAGE, commands, prints, rows

LEAST = 141
"""Number of items that were counted in the five tutorials."""


def test_every_item_has_a_command_or_a_page():
    found = rows()

    assert len(found) >= LEAST
    assert re.findall(r"^## (\d+):", PAGE.read_text(), re.MULTILINE) == ["000", "001", "002", "003", "004"]
    assert not [item for item, where, _ in found if "`" not in where and "](" not in where]


def test_every_command_has_output_and_every_experiment_is_a_command():
    found = commands()

    assert not [command for command, lines in found.items() if not lines]
    assert {command.split()[2] for command in found if command.startswith("samestep lab ")} >= {*EXPERIMENTS}


@pytest.mark.parametrize(
    ("output", "line", "found"),
    [
        ("gradients by sum      1.4\n", "gradients by sum 1.4", True),
        ("gradients by sum      1.7\n", "gradients by sum 1.4", False),
        ("ring   1.33   1", "ring 1.34 1", True),
        ("wrote b\nwrote a", "wrote ...a", True),
        ("all-reduce, ring  6  1.5  6", "all-reduce, ring 6 1.5 7", False),
    ],
)
def test_a_printed_line_is_found_with_rounded_numbers_and_omissions(output, line, found):
    assert prints(output, line) is found
