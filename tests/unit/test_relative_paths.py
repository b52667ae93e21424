"""Relative paths mean those of the folder in which a command was given, wherever they are used."""

import argparse
import ast
import importlib.util
import sys
from pathlib import Path

import pytest
from gpu_checks.context import environment

from samestep.base.folders import absolute
from support.random_scripts import __main__ as random_scripts

ROOT = Path(__file__).parents[2]
PROGRAMS = [*ROOT.glob("benchmarks/*.py"), *ROOT.glob("docs/*.py"), *ROOT.glob("tests/support/**/*.py")]


def paths_as_they_are(text):
    """Return the options whose paths a program does not make absolute, with their lines."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return [
        f"{ast.unparse(call.args[0])} in line {call.lineno}"
        for call in calls
        if isinstance(call.func, ast.Attribute)
        and call.func.attr == "add_argument"
        and any(one.arg == "type" and ast.unparse(one.value).endswith("Path") for one in call.keywords)
    ]


def test_a_path_is_that_of_the_folder_of_the_command(tmp_path, monkeypatch):
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", type=absolute, default="data")
    monkeypatch.chdir(tmp_path)

    found = [parser.parse_args(words).data_dir for words in ([], ["--data-dir", "a/b"], ["--data-dir", "/c"])]

    assert found == [tmp_path / "data", tmp_path / "a" / "b", Path("/c")]


def test_options_of_programs_are_made_absolute():
    assert len(PROGRAMS) > 50
    assert {path.name: found for path in PROGRAMS if (found := paths_as_they_are(path.read_text()))} == {}


@pytest.mark.parametrize("kind", ["Path", "pathlib.Path"])
def test_an_option_that_is_not_made_absolute_is_found(kind):
    assert paths_as_they_are(f'parser.add_argument("--data-dir", type={kind})') == ["'--data-dir' in line 1"]


def test_commands_of_the_gpu_benchmark_get_the_folder_of_the_data(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("gpu_benchmark", ROOT / "benchmarks" / "gpu.py")
    benchmark = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, benchmark)  # its dataclasses are looked up there
    spec.loader.exec_module(benchmark)
    monkeypatch.chdir(tmp_path)

    options = benchmark.parsed(["--data-dir", "data"])

    for arguments in benchmark.sizes(options.data_dir).recipes.values():
        assert arguments[-2:] == ("--data-dir", str(tmp_path / "data"))
    assert options.json == tmp_path / "samestep-gpu-benchmark.json"


def test_random_scripts_are_kept_in_the_folder_of_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["random_scripts", "--keep", "kept"])

    assert random_scripts._options().keep == tmp_path / "kept"


def test_commands_of_checks_on_gpus_find_relative_folders_of_modules(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "src::/opt/packages:site")

    source, checks, *others = environment()["PYTHONPATH"].split(":")

    assert [source, checks] == [str(ROOT / "src"), str(ROOT / "tests" / "gpu")]
    assert others == [str(tmp_path / "src"), "/opt/packages", str(tmp_path / "site")]
