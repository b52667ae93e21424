"""An option of several verbs is declared once, so that it has one text and one type."""

from collections import defaultdict

import pytest
from typer.main import get_command

from samestep.cli.help_text import COMMON, common_first
from samestep.cli.main import PACKAGES, VERBS, application, run_command

OTHER_MEANINGS = {
    "--workers": "a number, or for scale and verify several",
    "--config": "of a training, or of the options of run",
    "--nproc-per-node": "for run a number or a word, for scale a maximum",
    "--out": "of a run, or of a study",
    "--page": "for lab an addition, for report the result",
    "--scaling": "for scale the kind, for report a switch",
    "--seed": "of a training, or of the order of runs",
    "--steps": "optimizer steps to compare, or to measure",
    "--sync": "for train one, for bench step several to measure",
}
"""Flags that mean something else for another verb."""


WITHOUT_JSON = {"run": "its result is that of the program"}
"""Commands without ``--json``."""

WITHOUT_QUIET = dict.fromkeys(("data", "doctor", "stacks"), "prints its result only")
"""Commands without ``--quiet``."""


def commands():
    """Yield each command with options."""
    for verb in (*VERBS, *PACKAGES):
        command = get_command(application(verb)).commands[verb]
        yield from getattr(command, "commands", {verb: command}).values()


def flags_of(command):
    return {name for one in command.params for name in one.opts}


def test_every_command_has_json_and_quiet_except_those_with_a_reason():
    every = list(commands())

    assert len(every) > 30
    assert {one.name for one in every if "--json" not in flags_of(one)} == set(WITHOUT_JSON)
    assert {one.name for one in every if "--quiet" not in flags_of(one)} == set(WITHOUT_QUIET)


@pytest.mark.parametrize("verb", ["run", "verify", "scale", "train"])
def test_the_first_panel_of_help_has_the_common_options_alone(verb):
    loaded = get_command(application(verb)).commands

    common_first(loaded)

    first = {one.name for one in loaded[verb].params if one.param_type_name == "option"}
    first -= {one.name for one in loaded[verb].params if getattr(one, "rich_help_panel", None)}
    assert first - {one.name for one in loaded[verb].params if one.hidden} == set(COMMON[verb])


@pytest.mark.parametrize("verb", VERBS)
def test_help_shows_no_type_of_python(capsys, verb):
    below = getattr(get_command(application(verb)).commands[verb], "commands", {})
    for command in ([verb], *([verb, name] for name in below)):
        assert run_command([*command, "--help"]) == 0
        assert "list[" not in capsys.readouterr().out


@pytest.mark.parametrize("columns", [60, 79, 80, 120])
@pytest.mark.parametrize("verb", VERBS)
def test_help_fits_its_terminal_with_whole_names_of_options(capsys, monkeypatch, columns, verb):
    monkeypatch.setenv("COLUMNS", str(columns))
    found = get_command(application(verb)).commands[verb]
    for words, command in {
        (): found,
        **{(one,): each for one, each in vars(found).get("commands", {}).items()},
    }.items():
        assert run_command([verb, *words, "--help"]) == 0

        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= columns
        visible = [one for one in command.params if not one.hidden and one.param_type_name == "option"]
        shown = " ".join(lines)
        assert [one.opts for one in visible if not all(name in shown for name in one.opts)] == []


def test_a_flag_of_several_verbs_has_one_declaration():
    declarations = defaultdict(set)
    for command in commands():
        for one in command.params:
            flag = max(one.opts, key=len)
            if flag.startswith("-") and flag != "--help":
                declarations[flag].add((*one.opts, one.help, one.metavar, one.rich_help_panel, one.is_flag))

    assert {flag for flag, kinds in declarations.items() if len(kinds) > 1} == set(OTHER_MEANINGS)
