"""The notebooks print what they store, with workers that are threads, as in Jupyter."""

import json

import pytest

import samestep
from samestep.ranks.world.thread_world import run_ranks
from support.notebooks import NOTEBOOKS, executed


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_its_stored_outputs(path, monkeypatch):
    monkeypatch.setattr(samestep, "spawn", run_ranks)
    stored = json.loads(path.read_text())

    assert any(cell.get("outputs") for cell in stored["cells"])
    assert executed(path) == stored
