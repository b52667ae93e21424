"""The wheels and the source archives: their metadata, and an installation that trains and has the lab."""

import re
import subprocess
import sys
import sysconfig
import venv
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest

import samestep
from support.commands import environment

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(400)


def run(*command, **variables):
    plain = environment(**variables)
    plain.pop("PYTHONPATH", None)  # only the installed package is found
    return subprocess.run([*map(str, command)], env=plain, capture_output=True, text=True)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return the wheels of samestep and its lab, built from the source archives, and those archives."""
    folder = tmp_path_factory.mktemp("dist")
    for project in (ROOT, ROOT / "lab"):
        ended = run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, project)
        assert ended.returncode == 0, ended.stdout + ended.stderr
    wheels = sorted(folder.glob("*.whl"), key=lambda path: len(path.name))
    return *wheels, *folder.glob("*.tar.gz")


def metadata(wheel):
    with ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def test_the_package_index_accepts_wheel_and_source_archive(built):
    ended = run(sys.executable, "-m", "twine", "check", "--strict", *built, NO_COLOR="1")

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("PASSED") == 4


def test_the_description_has_only_absolute_links_and_they_lead_to_files(built):
    text = metadata(built[0]).get_payload()
    links = re.findall(r"\]\(([^)]+)\)", text)

    assert len(links) > 10
    for link in links:
        owner, _, path = link.partition("/main/")
        assert owner.startswith("https://")
        assert owner.endswith(("/blob", "/raw"))
        assert (ROOT / path).exists()


def test_version_and_citation_are_those_of_the_code(built):
    described = metadata(built[0])
    citation = (ROOT / "CITATION.cff").read_text()

    assert described["Version"] == samestep.__version__
    assert f"\nversion: {samestep.__version__}\n" in citation
    assert re.search(
        rf"^## \[{samestep.__version__}\] - \d{{4}}-\d\d-\d\d$",
        (ROOT / "CHANGELOG.md").read_text(),
        re.MULTILINE,
    )


def test_the_wheel_of_samestep_has_no_lab(built):
    folders = {}
    for wheel in built[:2]:
        with ZipFile(wheel) as archive:
            folders[wheel] = {name.partition("/")[0] for name in archive.namelist()}

    own, lab = ({name for name in found if not name.endswith(".dist-info")} for found in folders.values())
    assert (own, lab) == ({"samestep"}, {"samestep_lab"})


def local_index(files, folder):
    """Make a package index of folders, as pip reads it, and return its address."""
    for file in files:
        project = folder / file.name.partition("-")[0].replace("_", "-")
        project.mkdir(parents=True, exist_ok=True)
        with (project / "index.html").open("a") as page:
            page.write(f'<a href="{file.as_uri()}">{file.name}</a>\n')
    return folder.as_uri()


def test_pip_installs_from_an_index_what_trains_on_two_workers_and_has_the_lab(built, tmp_path):
    """No dependency is installed: the new environment finds those of this one behind its own packages."""
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    site = next((tmp_path / "venv").glob("lib/python*/site-packages"))
    index = local_index(built, tmp_path / "simple")
    install = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet")
    pip = (*install, "--no-deps", "--ignore-installed", "--index-url", index)
    assert run(*pip, "samestep").returncode == 0
    # addsitedir would run the .pth file of the editable installation; a plain path does not.
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")

    origin = run(python, "-c", "import samestep; print(samestep.__file__)")
    ended = run(
        tmp_path / "venv/bin/samestep", "train", "digits", "-n", 2, "--epochs", 1, "--out", tmp_path / "run"
    )

    assert Path(origin.stdout.strip()).is_relative_to(tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "run" / "result.json").exists()

    assert run(*pip, "samestep-lab").returncode == 0
    listed = run(tmp_path / "venv/bin/samestep", "lab")
    assert listed.returncode == 0, listed.stderr
    assert listed.stdout.partition("\n\n")[2].startswith("hello ")
