"""The bundle of the GPU checks has the wheels that they need, and installs what a Python lacks of them."""

import runpy
import zipfile
from pathlib import Path

import pytest

FOLDER = Path(__file__).with_name("bundle")
MAKE = runpy.run_path(str(FOLDER / "make.py"))
RUN = runpy.run_path(str(FOLDER / "run.py"))
REQUIRES = {
    "typer": ["pydantic>=2.5", "colorama; platform_system == 'Windows'"],
    "pydantic": ["pydantic-core==2.50", "email-validator; extra == 'email'", "old; python_version < '3.12'"],
    "pydantic-core": [],
    "filelock": ["torch>=2"],
}
PINNED = {"typer": "0.29.2", "pydantic": "2.14", "pydantic-core": "2.50", "filelock": "4"}


def fetch(versions, python, folder):
    """Write wheels with the requirements of packages."""
    files = {name: folder / f"{name}-{version}-py3-none-any.whl" for name, version in versions.items()}
    for name, file in files.items():
        lines = [f"Name: {name}", *(f"Requires-Dist: {one}" for one in REQUIRES[name])]
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(f"{name}.dist-info/METADATA", "\n".join(lines) + "\n\ntext\n")
    return files


def test_the_wheels_are_closed_under_what_they_need(tmp_path):
    taken = MAKE["wheels"](["torch>=2.6", "typer>=0.29"], "3.12", tmp_path, pinned=PINNED, fetch=fetch)

    assert sorted(taken) == ["pydantic", "pydantic-core", "typer"]
    assert taken["pydantic"]["requires"] == ["pydantic-core==2.50"]


@pytest.mark.parametrize("needed", ["absent>=1", "pydantic>=3"])
def test_a_package_without_a_suitable_pin_is_an_error(needed, tmp_path):
    with pytest.raises(SystemExit, match=needed.partition(">")[0]):
        MAKE["wheels"]([needed], "3.12", tmp_path, pinned=PINNED, fetch=fetch)


def test_the_dependencies_are_pinned():
    assert {"typer", "pydantic", "pydantic-core", "pooch", "requests", "tomli-w"} <= MAKE["pins"]().keys()


def test_only_packages_that_a_python_lacks_are_installed_with_what_they_need(tmp_path):
    taken = MAKE["wheels"](["typer", "filelock"], "3.12", tmp_path, pinned=PINNED, fetch=fetch)
    installed = {"filelock", "pydantic-core", "torch"}

    found = RUN["lacking"](["torch", "typer", "filelock"], taken, lambda one: one.name in installed)

    assert found == ["pydantic", "typer"]


def test_versions_of_installed_packages_are_compared():
    requirement = RUN["Requirement"]

    assert RUN["is_met"](requirement("pytest>=1"))
    assert not RUN["is_met"](requirement("pytest>=10000"))
    assert not RUN["is_met"](requirement("samestep-without-such-a-package"))
