"""The user's configuration: used as written, or refused with the nearest thing that could be meant."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from samestep.base.config import config_path, table
from samestep.base.errors import UsageError


@dataclass(frozen=True)
class Site:
    partition: str = "any"
    time: str = ""
    cpus_per_task: int | None = None
    lines: tuple[str, ...] = ()


@pytest.fixture
def read(tmp_path):
    def write_and_read(text):
        path = tmp_path / "config.toml"
        path.write_text(text)
        return table(path, "slurm", Site)

    return write_and_read


def test_it_lies_where_the_platform_keeps_configurations(tmp_path):
    assert config_path({"XDG_CONFIG_HOME": str(tmp_path)}) == tmp_path / "samestep" / "config.toml"
    assert config_path({}) == Path.home() / ".config" / "samestep" / "config.toml"
    assert config_path({"XDG_CONFIG_HOME": "relative"}) == config_path({})


def test_without_a_file_all_holds_as_it_is(tmp_path):
    assert table(tmp_path / "none.toml", "slurm", Site) == Site()


def test_keys_have_dashes_or_underscores_and_a_time_may_be_a_number(read):
    text = '[slurm]\ntime = 90\ncpus-per-task = 8\nlines = ["a", "b"]\n[mpi]\n'

    assert read(text) == Site(time="90", cpus_per_task=8, lines=("a", "b"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '[slurm]\npartitions = "gpu"',
            r"\[slurm\] has no key 'partitions'. The nearest there is: partition",
        ),
        ("[slrm]\n", "no table is called 'slrm'. The nearest there is: slurm"),
        ("slurm = 3", r"slurm is a table: write \[slurm\]"),
        ('[slurm]\ncpus-per-task = "8"', "cpus-per-task = '8' is not a whole number"),
        ("[slurm]\ncpus_per_task = true", "cpus_per_task = True is not a whole number"),
        ('[slurm]\nlines = "a"', "lines = 'a' is not a list of texts"),
        ("[slurm]\npartition = true", "partition = True is not a text"),
        ("[slurm\n", "is no TOML"),
    ],
)
def test_what_is_wrong_is_named(read, text, said):
    with pytest.raises(UsageError, match=said):
        read(text)


def test_a_file_that_cannot_be_read_is_no_missing_file(tmp_path):
    with pytest.raises(UsageError, match="cannot read the configuration"):
        table(tmp_path, "slurm", Site)
