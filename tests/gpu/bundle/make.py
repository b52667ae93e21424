"""Writes a folder with which the checks run on a machine without a network: ``make.py FOLDER [PYTHON]``.

It has the sources, wheels of what samestep needs for that version of Python, and the program ``run``. It has
neither torch nor NumPy, which comes with torch: each is larger than the rest.
"""

import json
import shutil
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).parents[3]
COPIED = ("src", "benchmarks", "examples", "tests/gpu")
NOT_TAKEN = {"torch", "numpy"}
MOST_BYTES = 20_000_000


def pins(lock=ROOT / "requirements.lock"):
    """Return the version of each package that the lock file pins."""
    lines = (line.partition("==") for line in lock.read_text().splitlines() if "==" in line)
    return {canonicalize_name(name): version for name, _, version in lines}


def requirements(wheel, python):
    """Return the requirements of a wheel without extras on Linux, by the target's version of Python."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        listed = message_from_bytes(archive.read(name)).get_all("Requires-Dist", [])
    target = default_environment()
    target.update(python_version=python, python_full_version=f"{python}.0")
    target.update(sys_platform="linux", platform_system="Linux")
    found = map(Requirement, listed)
    return [
        f"{one.name}{one.specifier}"
        for one in found
        if one.marker is None or one.marker.evaluate({**target, "extra": ""})
    ]


def download(versions, python, folder):
    """Download the wheels of packages in these versions; return them by name."""
    options = ("--no-deps", "--only-binary=:all:", "--python-version", python, "--dest", folder)
    exact = [f"{name}=={version}" for name, version in versions.items()]
    subprocess.run([sys.executable, "-m", "pip", "--quiet", "download", *options, *exact], check=True)
    return {parse_wheel_filename(wheel.name)[0]: wheel for wheel in folder.glob("*.whl")}


def wheels(needed, python, folder, *, pinned, fetch=download):
    """Download what is needed, and what that needs; return the file and the requirements of each package.

    Raises:
        SystemExit: a package is not pinned, or its pinned version is not what another package needs.
    """
    taken, waiting = {}, list(needed)
    while versions := _versions(waiting, pinned, taken):
        files = fetch(versions, python, folder)
        new = {name: requirements(files[name], python) for name in versions}
        taken.update({name: {"file": files[name].name, "requires": new[name]} for name in new})
        waiting = [one for listed in new.values() for one in listed]
    return taken


def _versions(needed, pinned, taken):
    """Return the pinned versions of the needed packages that are not taken yet."""
    found = {}
    for requirement in map(Requirement, needed):
        name = canonicalize_name(requirement.name)
        if name in NOT_TAKEN:
            continue
        if name not in pinned or pinned[name] not in requirement.specifier:
            sys.exit(f"error: {requirement} is needed, and requirements.lock has {pinned.get(name)}.")
        if name not in taken:
            found[name] = pinned[name]
    return found


def size(folder):
    """Return the bytes of all files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def main(folder, python="3.12"):
    """Write the bundle into a new folder."""
    sys.path.insert(0, str(ROOT / "tests" / "gpu"))
    from gpu_checks.dependencies import NEEDED

    folder = Path(folder).absolute()
    shutil.rmtree(folder, ignore_errors=True)
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "wheels").mkdir()
    taken = wheels(NEEDED, python, folder / "wheels", pinned=pins())
    content = {"python": python, "wheels": taken}
    (folder / "wheels.json").write_text(json.dumps(content, indent=1) + "\n")
    shutil.copy(Path(__file__).with_name("run.py"), folder / "run")
    (folder / "run").chmod(0o755)
    describe = ("git", "describe", "--always", "--exclude=*", "--abbrev=8", "--dirty")
    head = subprocess.run(describe, capture_output=True, text=True, cwd=ROOT)
    (folder / "commit").write_text(head.stdout)
    if (total := size(folder)) > MOST_BYTES:
        sys.exit(f"error: {folder} has {total / 1e6:.1f} MB, more than {MOST_BYTES / 1e6:g} MB.")
    print(f"{folder}: {total / 1e6:.1f} MB, {len(taken)} wheels for Python {python}")
    print(f"On a machine with a GPU and torch: python3 {folder.name}/run RESULTS")


if __name__ == "__main__":
    main(*sys.argv[1:])
