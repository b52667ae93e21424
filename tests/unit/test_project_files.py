"""Files that other programs read (workflows, containers, citation) are readable and name existing files."""

import re
from pathlib import Path

import pytest
import yaml

from samestep.cli.main import PACKAGES, VERBS

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted(
    [*(ROOT / ".github/workflows").glob("*.yml"), *(ROOT / "examples/workflows").glob("*.yml")]
)
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))


def read(path):
    return yaml.safe_load(path.read_text())


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_has_jobs_of_steps_and_read_permission_only(path):
    workflow = read(path)

    assert workflow["permissions"] == {"contents": "read"}
    assert True in workflow  # the key `on`, which YAML reads as a truth value
    for job in workflow["jobs"].values():
        assert job["runs-on"]
        assert all("uses" in step or "run" in step for step in job["steps"])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_commands_that_exist(path):
    text = path.read_text()
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)

    assert set(re.findall(r"run: samestep (\w+)", text)) <= {*VERBS, *PACKAGES}
    assert set(re.findall(r"run: make (\w+)", text)) <= set(targets)
    assert all((ROOT / name).exists() for name in re.findall(r"bash (\S+)", text))


@pytest.mark.parametrize(
    "path", [path for path in FORMS if path.name != "config.yml"], ids=lambda path: path.name
)
def test_a_form_for_issues_has_what_github_requires(path):
    form = read(path)

    assert {"name", "description", "body"} <= set(form)
    fields = [one["id"] for one in form["body"] if one["type"] != "markdown"]
    assert len(fields) == len(set(fields)) > 0
    assert all(one["attributes"]["label"] for one in form["body"])


def test_the_containers_copy_files_that_exist():
    docker = re.findall(r"^COPY (.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    files = (ROOT / "samestep.def").read_text().split("%files\n")[1].split("\n\n")[0]
    names = [*" ".join(docker).split(), *(line.split()[0] for line in files.splitlines())]

    assert {"src", "pyproject.toml", "hatch_build.py"} <= set(names)
    assert all((ROOT / name).exists() for name in names)
    ignored = (ROOT / ".dockerignore").read_text()
    assert all(f"!{name}\n" in ignored for name in " ".join(docker).split())


def test_the_citation_has_the_required_fields():
    assert {"cff-version", "message", "title", "authors"} <= set(read(ROOT / "CITATION.cff"))


def test_the_pre_commit_hooks_are_the_programs_of_make_check():
    (repository,) = read(ROOT / ".pre-commit-config.yaml")["repos"]

    programs = {hook["entry"].split()[0].rpartition("/")[2] for hook in repository["hooks"]}
    check = (ROOT / "Makefile").read_text().split("\ncheck: ")[1].split("\n\n")[0]
    assert programs == set(re.findall(r"\$\(BIN\)/([\w-]+)", check))
