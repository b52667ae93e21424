"""Text that is quoted for a shell or for sbatch is read back unchanged."""

import os
import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep.base.errors import UsageError
from samestep.submit.shell import directive, quoted, run_command, slug

LINES = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), min_size=1, max_size=20)


@given(LINES)
def test_a_directive_is_one_line_that_is_parsed_to_the_given_text(name):
    line = directive("--job-name", name)

    assert line.startswith("#SBATCH --job-name=")
    assert shlex.split(line[8:], posix=True) == [f"--job-name={name}"]


def test_an_answer_that_is_no_utf_8_is_read():
    """Slurm prints comments and paths as they were given."""
    answer = run_command(["printf", r"WorkDir=/\351t\351"])
    assert os.fsencode(answer.out) == b"WorkDir=/\xe9t\xe9"


def test_a_line_break_in_a_directive_is_refused():
    with pytest.raises(UsageError, match="--job-name"):
        directive("--job-name", "a\n#SBATCH --uid=0")


def test_bash_reads_quoted_line_breaks_back_from_one_line():
    odd = ["it's\n\\n\\", "\n", '$(x)\n"`', "a b"]

    words = " ".join(quoted(odd))

    assert "\n" not in words
    ended = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {words}"], capture_output=True, check=True, text=True
    )
    assert ended.stdout.split("\0")[:-1] == odd


@given(LINES)
def test_a_slug_has_no_special_characters_of_slurm_or_a_shell(name):
    assert not set(slug(name)) & set("%/\\'\" ;$*?")
    assert slug(name) not in ("", ".", "..")
