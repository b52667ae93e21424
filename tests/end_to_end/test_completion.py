"""Shells complete the verbs and options of ``samestep``."""

import shutil
import subprocess
import sys

import pytest
from shellingham import ShellDetectionFailure

from samestep.cli.main import VERBS, added_verbs, completed_words, run_command


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Put a program ``samestep`` first on the PATH."""
    program = tmp_path / "samestep"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m samestep "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


def shell(name, script):
    done = subprocess.run([name, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.split()


def completed_by_bash(*words):
    return shell(
        "bash",
        'eval "$(_SAMESTEP_COMPLETE=source_bash samestep)"\n'
        f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}\n"
        'set -- $(complete -p samestep); "${@: -2:1}" samestep; printf "%s\\n" "${COMPREPLY[@]}"',
    )


def test_bash_completes_verbs_and_options(path):
    assert set(completed_by_bash("samestep", '""')) == {*VERBS, *added_verbs()}
    assert completed_by_bash("samestep", "run", "--nproc") == ["--nproc-per-node"]


def test_zsh_completes_verbs_and_options(path, monkeypatch, capsys):
    monkeypatch.setenv("_SAMESTEP_COMPLETE", "complete_zsh")
    for line, found in (("samestep ver", '"verify"'), ("samestep train --batch-s", '"--batch-size"')):
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
        with pytest.raises(SystemExit):
            run_command([])
        assert found in capsys.readouterr().out
    if shutil.which("zsh"):
        monkeypatch.delenv("_SAMESTEP_COMPLETE")
        script = 'autoload -Uz compinit; compinit -u; eval "$(_SAMESTEP_COMPLETE=source_zsh samestep)"'
        assert shell("zsh", f"{script}; print $_comps[samestep]") == ["_samestep_completion"]


def test_only_the_verb_of_a_completed_command_is_loaded():
    assert (
        completed_words({"_SAMESTEP_COMPLETE": "complete_bash", "COMP_WORDS": "samestep run -"})[0] == "run"
    )
    assert completed_words({"COMP_WORDS": "samestep run -"}) == ()


@pytest.mark.parametrize("option", ["--install-completion", "--show-completion"])
def test_an_unknown_shell_is_one_line(option, monkeypatch, capsys):
    def fails():
        raise ShellDetectionFailure

    monkeypatch.setattr("shellingham.detect_shell", fails)

    assert run_command([option]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert option in err


def test_a_home_that_cannot_be_written_is_one_line(monkeypatch, capsys, tmp_path):
    (tmp_path / "home").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("bash", "/bin/bash"))

    assert run_command(["--install-completion"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
