#!/usr/bin/env python3
"""Runs all checks of samestep on this machine, without a network: ``run RESULTS [OPTIONS OF THE CHECKS]``.

Packages that this Python lacks, or has in too old a version, are installed into RESULTS from the bundle's
wheels. The installed packages are not changed. RESULTS/gpu.json has the results.
"""

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name

BUNDLE = Path(__file__).resolve().parent
SOURCES = [str(BUNDLE / "src"), str(BUNDLE / "tests" / "gpu")]
sys.path[:0] = SOURCES


def is_met(requirement):
    """Return whether an installed package meets a requirement."""
    try:
        return requirement.specifier.contains(version(requirement.name), prereleases=True)
    except PackageNotFoundError:
        return False


def lacking(needed, wheels, is_met=is_met):
    """Return the packages of the bundle to install here, with those that they need in turn."""
    chosen, waiting = [], list(map(Requirement, needed))
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name not in chosen and name in wheels and not is_met(requirement):
            chosen.append(name)
            waiting.extend(map(Requirement, wheels[name]["requires"]))
    return sorted(chosen)


def main(results, *options):
    """Install what is missing, and become the program of the checks."""
    from gpu_checks.dependencies import NEEDED

    results = Path(results).absolute()
    site = results / "site"
    site.mkdir(parents=True, exist_ok=True)
    content = json.loads((BUNDLE / "wheels.json").read_text())
    wheels, own = content["wheels"], "{}.{}".format(*sys.version_info)
    if names := lacking(NEEDED, wheels):
        if content["python"] != own:
            sys.exit(
                f"error: the bundle's wheels are for Python {content['python']}; {sys.executable} is {own}."
            )
        print(f"From the bundle: {', '.join(names)}", flush=True)
        install = ("install", "--quiet", "--no-index", "--no-deps", "--upgrade", "--target", str(site))
        files = [str(BUNDLE / "wheels" / wheels[name]["file"]) for name in names]
        subprocess.run([sys.executable, "-m", "pip", *install, *files], check=True)
    path = [str(site), *SOURCES, *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(path)
    program = [sys.executable, "-m", "gpu_checks"]
    os.execv(sys.executable, [*program, "--share-gpu", "--json", str(results / "gpu.json"), *options])


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])
