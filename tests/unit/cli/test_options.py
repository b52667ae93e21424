"""An option of several verbs is declared once, so that it has one text and one type."""

from collections import defaultdict

from typer.main import get_command

from samestep.cli.main import VERBS, application

OTHER_MEANINGS = {
    "--workers": "a number, or for scale and verify several",
    "--algorithm": "of a script's gradients, of a recipe's, or for bench several to measure",
    "--config": "of a training, or of the options of run",
    "--hang-timeout": "for bench of a call, which always ends",
    "--batch-norm": "of a script, or of a recipe",
    "--nproc-per-node": "for run a number or a word, for scale a maximum",
    "--out": "of a run, or of a study",
    "--page": "for lab an addition, for report the result",
    "--scaling": "for scale the kind, for report a switch",
    "--seed": "of a training, or of the order of runs",
    "--steps": "optimizer steps to compare, or to measure",
    "--sync": "for train one, for bench step several to measure",
}
"""Flags that mean something else for another verb."""


def commands():
    """Yield each command with options."""
    for verb in VERBS:
        command = get_command(application(verb)).commands[verb]
        yield from getattr(command, "commands", {verb: command}).values()


def test_a_flag_of_several_verbs_has_one_declaration():
    declarations = defaultdict(set)
    for command in commands():
        for one in command.params:
            flag = max(one.opts, key=len)
            if flag.startswith("-") and flag != "--help":
                declarations[flag].add((*one.opts, one.help, one.metavar, one.rich_help_panel, one.is_flag))

    assert {flag for flag, kinds in declarations.items() if len(kinds) > 1} == set(OTHER_MEANINGS)
