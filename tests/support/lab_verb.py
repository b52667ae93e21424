"""Adds the verb `lab` to the command line where samestep-lab is on the path of imports, but not installed."""

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

from samestep.cli.main import GROUP, added_verbs


def add_lab_verb() -> None:
    """Write the metadata of an installed samestep-lab, unless there is one; child processes find it too."""
    if "lab" in added_verbs():
        return
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    metadata = folder / "samestep_lab-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: samestep-lab\nVersion: 0\nSummary: Lab.\n")
    (metadata / "entry_points.txt").write_text(f"[{GROUP}]\nlab = samestep_lab.command:lab\n")
    sys.path.append(str(folder))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(folder)]))
