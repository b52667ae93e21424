"""Names of options that other launchers have are accepted, or answered with samestep's own."""

import pytest
from torch.distributed.run import get_args_parser
from typer.main import get_command

from samestep.cli import help_text
from samestep.cli.main import VERBS, application, run_command
from samestep.cli.other_names import ANSWERS, SAME, answer_to, own_name


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("import torch\n")
    return str(path)


@pytest.mark.parametrize(
    "flags",
    [
        ["-n", "2"],
        ["--workers", "2"],
        ["--num_processes", "2"],
        ["--num-processes=2"],
        ["--nproc_per_node", "2"],
        ["--nproc=2"],
    ],
)
def test_every_name_of_the_number_of_workers_is_accepted(capsys, script, flags):
    assert run_command(["run", "--dry_run", *flags, script]) == 0
    assert "2 worker" in capsys.readouterr().out


def flags_of(verb):
    command = get_command(application(verb)).commands[verb]
    commands = getattr(command, "commands", {verb: command}).values()
    return {flag for one in commands for param in one.params for flag in param.opts}


def test_every_other_name_stands_for_an_existing_option():
    every = set().union(*map(flags_of, VERBS))

    assert {f"--{name}" for name in SAME.values()} <= every
    assert not {f"--{name}" for name in SAME} & every
    assert [own_name(name.replace("-", "_")) for name in SAME] == list(SAME.values())


def test_every_option_of_torchrun_is_accepted_or_has_an_answer():
    own = flags_of("run")
    theirs = [name for one in get_args_parser()._actions for name in one.option_strings if name[:2] == "--"]

    assert len(theirs) > 20
    assert [name for name in theirs if not {f"--{own_name(name[2:])}"} & (own | {*ANSWERS, "--help"})] == []


def test_the_common_options_exist():
    for verb, names in help_text.COMMON.items():
        command = get_command(application(verb)).commands[verb]
        every = [command, *getattr(command, "commands", {}).values()]
        assert set(names) <= {param.name for one in every for param in one.params}


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (["train", "--local_addr", "x"], "GLOO_SOCKET_IFNAME"),
        (["run", "--use_fsdp", "a.py"], "accelerate"),
        (["run", "--numa_binding=node", "a.py"], "--bind"),
        (["verify", "--learning_rate", "1", "a.py"], "--learning_rate"),
        (["submit", "slurm", "-t", "3", "a.py"], "--time "),
        (["submit", "slurm", "--module", "gcc", "a.py"], "--load-module"),
        (["report", "--out", "x", "y"], "--page"),
        (["bench", "step", "--timeout", "4"], "--hang-timeout"),
    ],
)
def test_an_option_that_a_verb_does_not_have_is_refused_with_an_alternative(capsys, command, named):
    assert run_command(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line


def test_only_known_names_have_an_answer():
    assert answer_to("--splitt", ["run", "--splitt"]) is None
    assert all(answer_to(name, []) for name in ANSWERS)


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_has_short_help(capsys, verb):
    assert run_command([verb, "-h"]) == 0
    assert "-h" in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["train"], ["run"], ["bench", "step"]])
def test_a_switch_is_shown_without_a_value(capsys, words):
    assert run_command([*words, "-h"]) == 0
    text = capsys.readouterr().out
    assert "--help" in text
    assert "<bool>" not in text


def test_the_common_options_come_first(capsys):
    run_command(["train", "-h"])
    text = capsys.readouterr().out
    assert text.index("│ --epochs") < text.index("│ --max-restarts")
