"""A project's own defaults of options come from ``--config`` or from its ``pyproject.toml``."""

import pytest

from samestep.cli.main import run_command


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run ``samestep run --dry-run`` in a project; return its exit code, stdout and stderr."""
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "deep")
    (tmp_path / "deep" / "train.py").write_text("import torch\n")

    def command(*arguments, project="", config=""):
        (tmp_path / "pyproject.toml").write_text(project)
        (tmp_path / "deep" / "own.toml").write_text(config)
        code = run_command(["run", "--dry-run", *arguments, "train.py"])
        return code, *capsys.readouterr()

    return command


PROJECT = "[project]\nname = 'a'\n[tool.samestep]\nworkers = 3\nmax-restarts = 2\n"


@pytest.mark.parametrize(
    ("arguments", "found"),
    [((), 3), (("-n", "2"), 2), (("--config", "own.toml"), 4), (("--config=own.toml", "--workers=1"), 1)],
)
def test_a_flag_overrides_a_file_and_config_overrides_the_project(run, arguments, found):
    code, out, _ = run(*arguments, project=PROJECT, config="num_processes = 4\n")

    assert code == 0
    assert f"{found} worker" in out
    assert ("restarts: up to 2" in out) is ("own.toml" not in " ".join(arguments))


@pytest.mark.parametrize(
    ("arguments", "default"),
    [(("--nproc-per-node", "2"), "workers = 3"), (("-n", "2"), "nproc-per-node = 3")],
)
def test_a_typed_number_of_workers_replaces_a_default_of_its_other_option(run, arguments, default):
    code, out, err = run(*arguments, project=f"[tool.samestep]\n{default}\n")

    assert code == 0, err
    assert "2 workers" in out


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ("wrokers = 2", ("'wrokers'", "'workers'")),
        ("momentum = 2", ("'momentum'", "Use one of", "workers")),
        ("config = 'own.toml'", ("'config'",)),  # a file that names itself
        ("hang-timeout = 'soon'", ("hang-timeout", "'soon'")),
        ("workers = true", ("workers", "True")),
        ("count = 1", ("count", "true or false")),
        ("workers = {a = 1}", ("workers", "'a'")),
        ("master-port = 1.5", ("master-port", "1.5")),
        ("workers = ", ("own.toml",)),
        ("program = 'x'", ("'program'",)),
        ("short-calls = 'spilt'", ("'spilt'", "split")),
    ],
)
def test_a_wrong_file_is_one_line(run, config, named):
    code, out, err = run("--config", "own.toml", config=config)

    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert all(one in line for one in named)


@pytest.mark.parametrize(
    "table",
    [
        "[ tool . 'samestep' ]\nworkers = 3",
        "[tool]\nsamestep.workers = 3",
        "[tool]\nsamestep = {workers = 3}",
        "tool.samestep.workers = 3",
        'tool = {"samestep" = {workers = 3}}',
    ],
)
def test_the_table_of_a_project_may_have_any_notation_of_toml(run, table):
    assert "3 workers" in run(project=f"{table}\n")[1]


def test_a_project_without_defaults_is_left_alone(run):
    assert run(project="[tool.other]\nx = 1\n")[0] == 0
    assert run(project="not toml")[0] == 0
    assert run(project="tool = 1\n")[0] == 0
    assert run(project="[tool.samestep]\nx = ")[0] == 2
