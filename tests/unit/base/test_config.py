"""The user's configuration is read, or refused with the most similar valid name."""

import pwd
from dataclasses import dataclass
from pathlib import Path

import pytest

from samestep.base.config import config_path, read_toml, table
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


def test_the_path_is_in_the_configuration_folder_of_the_platform(tmp_path):
    assert config_path({"XDG_CONFIG_HOME": str(tmp_path)}) == tmp_path / "samestep" / "config.toml"
    assert config_path({}) == Path.home() / ".config" / "samestep" / "config.toml"
    assert config_path({"XDG_CONFIG_HOME": "relative"}) == config_path({})


def test_without_a_file_all_defaults_hold(tmp_path):
    assert table(tmp_path / "none.toml", "slurm", Site) == Site()


def test_keys_have_dashes_or_underscores_and_a_time_may_be_a_number(read):
    text = '[slurm]\ntime = 90\ncpus-per-task = 8\nlines = ["a", "b"]\n[kubernetes]\n'

    assert read(text) == Site(time="90", cpus_per_task=8, lines=("a", "b"))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('[slurm]\npartitions = "gpu"', ["[slurm]", "'partitions'", "'partition'"]),
        ("[slrm]\n", ["'slrm'", "'slurm'"]),
        ("slurm = 3", ["slurm", "[slurm]"]),
        ('[slurm]\ncpus-per-task = "8"', ["[slurm]", "cpus-per-task", "'8'", "integer"]),
        ("[slurm]\ncpus_per_task = true", ["[slurm]", "cpus_per_task", "True", "integer"]),
        ('[slurm]\nlines = "a"', ["[slurm]", "lines", "'a'", "list"]),
        ("[slurm]\npartition = true", ["[slurm]", "partition", "True", "string"]),
        ("[slurm\n", ["config.toml", "TOML"]),
    ],
)
def test_an_error_names_the_table_the_key_and_the_value(read, text, named):
    with pytest.raises(UsageError) as raised:
        read(text)

    assert all(one in str(raised.value) for one in named)


def test_a_file_that_exists_and_cannot_be_read_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="cannot read the configuration"):
        table(tmp_path, "slurm", Site)


def test_a_user_without_a_home_folder_has_no_configuration(monkeypatch):
    def unknown(number):
        raise KeyError(number)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert read_toml(config_path({}), missing_ok=True) == {}
