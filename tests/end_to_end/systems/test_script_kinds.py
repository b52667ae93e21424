"""Every kind of script under every launcher has the serial output, or is refused in one line.

``make test`` starts four cells, and ``make test-long`` at least one of each row and each column. ``make
matrix`` starts all of them, and each script without samestep, and writes the table; ``SAMESTEP_MATRIX``
names the file for the outcomes.
"""

import json
import os
import re
from datetime import date

import pytest

from samestep.base.folders import absolute
from support.commands import Ended, finish
from support.forked_commands import start_script
from support.launches import RUN
from support.script_kinds import (
    CELLS,
    GALLERY,
    IN_CI,
    KINDS,
    LAUNCHERS,
    REFUSED,
    ROOT,
    SAME,
    Launches,
    outcome,
    variables,
)
from support.script_kinds_page import cells_on_page
from support.tiers import mostly_long

FILE = absolute(os.environ["SAMESTEP_MATRIX"]) if os.environ.get("SAMESTEP_MATRIX") else None
"""The file for the outcomes; without it, some cells are started and compared with the page."""
REFUSED_EVERYWHERE = ("notebook", "torchrun", "accelerate-launch")
VERSION = re.compile(r"^(torch|accelerate|transformers|lightning|keras)==(\S+)", re.MULTILINE)


@pytest.fixture(scope="module")
def expected():
    """Return the line that each script prints: that of the serial script."""
    ended = finish(start_script(GALLERY / "serial.py", OMP_NUM_THREADS="1"))
    assert ended.code == 0, ended.err
    return ended.out.strip()


@pytest.fixture(scope="module")
def record():
    """Return a function that records the outcome of a cell for the file, if there is one."""
    cells = {kind: {} for kind in KINDS}
    yield lambda kind, launcher, found: cells[kind].update({launcher: found})
    if FILE:
        versions = dict(VERSION.findall((ROOT / "requirements-frameworks.lock").read_text()))
        results = {"date": f"{date.today()}", "versions": versions, "cells": cells}  # noqa: DTZ011 - for readers
        FILE.write_text(json.dumps(results, indent=1))


@pytest.fixture
def launches(nodes, slurm, tmp_path):
    return Launches(nodes, slurm, tmp_path)


SHORT = ("accelerate-launch on static", "ddp-slurm on srun", "module on openmpi", "notebook on run")


@pytest.mark.parametrize("cell", mostly_long(CELLS if FILE else IN_CI, SHORT, " on ".join))
def test_a_script_has_the_serial_output_or_is_refused_in_one_line(launches, expected, record, cell):
    kind, launcher = cell
    found = outcome(launches.ends(launcher, KINDS[kind]), expected, launcher=launcher)

    record(kind, launcher, found)
    assert FILE or found == cells_on_page()[kind][launcher]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if FILE and kind not in REFUSED_EVERYWHERE])
def test_a_script_has_the_serial_output_without_samestep(launches, expected, kind):
    assert outcome(launches.plain_ends(KINDS[kind]), expected, launcher=KINDS[kind].plain) == SAME


@pytest.mark.parametrize("kind", ["ddp-slurm", *(["lightning-ddp"] if FILE else [])])
def test_under_mpirun_in_a_slurm_job_a_script_has_the_ranks_of_mpi(slurm, tmp_path, expected, kind):
    """The variables of Slurm are those of the job script there, which is task 0."""
    python = KINDS[kind].python()
    mpirun = "mpirun.openmpi --allow-run-as-root --bind-to none"
    command = " ".join([mpirun, python, *RUN[1:], *KINDS[kind].words()])
    (out,) = slurm.batch(command, "--ntasks=2", "--nodes=1", folder=tmp_path, **variables())

    assert outcome([Ended(0, out, "")], expected, launcher="openmpi") == SAME


@pytest.mark.skipif(bool(FILE), reason="the page is written from the outcomes of this run")
def test_the_page_has_every_cell_and_ci_starts_one_of_each_row_and_column():
    cells = cells_on_page()

    assert {cell for row in cells.values() for cell in row.values()} == {SAME, REFUSED}
    assert {kind for kind, _ in IN_CI} == set(KINDS)
    assert {launcher for _, launcher in IN_CI} == set(LAUNCHERS)
    assert all(set(cells[kind].values()) == {REFUSED} for kind in REFUSED_EVERYWHERE)
