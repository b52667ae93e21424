"""Options that exclude or need each other are refused, in one line that names both."""

import dataclasses

import pytest
import typer

from samestep.base.errors import UsageError
from samestep.base.options import (
    OF_COMMANDS,
    OF_FLAGS_BESIDE_SETTINGS,
    OF_SETTINGS,
    Rule,
    check_options,
    flag,
)
from samestep.cli.main import VERBS, application
from samestep.training.settings import Settings

RULES = (
    Rule("--a", "excludes", "--b, --c x|y*", "so"),
    Rule("--d 1|2", "needs", "--e", "so"),
    Rule("--only", "excludes all but", "--f", "so"),
)


def names(rules):
    return {one.partition(" ")[0] for rule in rules for one in (rule.option, *rule.partners.split(", "))}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"--a": True, "--b": 0.5}, ["--a ", "--b 0.5"]),
        ({"--a": 3, "--c": "yes"}, ["--a 3", "--c yes"]),
        ({"--d": 2.0}, ["--d 2", "--e"]),
        ({"--only": True, "--f": 1, "--g": (1.0, 2.5)}, ["--only", "--g 1,2.5"]),
    ],
)
def test_both_options_are_named_with_their_values(values, named):
    with pytest.raises(UsageError) as refused:
        check_options(RULES, values)

    assert all(text in str(refused.value) for text in named)


@pytest.mark.parametrize(
    "values",
    [
        {"--a": True, "--c": "z"},
        {"--a": False, "--b": 1},
        {"--d": 3},
        {"--d": 1, "--e": "x"},
        {"--only": True, "--f": 1},
    ],
)
def test_options_that_fit_together_are_accepted(values):
    check_options(RULES, values)


def test_rules_hold_for_the_given_options_only():
    check_options(RULES, {"--a": 1, "--b": 1}, subjects={"--b": 1})
    with pytest.raises(UsageError):
        check_options(RULES, {"--b": 1}, subjects={"--a": 1})


def test_every_rule_is_about_options_that_there_are():
    settings = {flag(one.name) for one in dataclasses.fields(Settings)}
    options = set()
    for verb in VERBS:
        command = typer.main.get_command(application(verb)).commands[verb]
        for one in (command, *getattr(command, "commands", {}).values()):
            options |= {name for param in one.params for name in param.opts}

    assert names(OF_COMMANDS) <= options
    assert names(OF_SETTINGS) <= settings
    assert names(OF_FLAGS_BESIDE_SETTINGS) <= settings | {"--data", "--data-dir"}
