"""`verify` notes mistakes that exist on one worker already; notes do not change the verdict."""

import pytest

from gallery_notes.manifest import SCRIPTS
from samestep.base.folders import shown
from support.tiers import mostly_long, stem


# The mistake of every note, and the line that it names, are tested in `unit/verify/observers`: these scripts
# show that a run of verify reports the notes, also those of a second epoch and of a loader's processes.
@pytest.mark.parametrize("script", mostly_long(SCRIPTS, ("clipped_scaled", "forgotten_head"), stem))
def test_a_mistake_on_one_worker_is_noted(verifier, script):
    report = verifier.verify(script.path, steps=script.steps)
    (note,) = report["findings"]
    assert (note["code"], note["gravity"], note["workers"]) == (script.code, "note", 1)
    assert note["file"] == shown(str(script.path))
    assert script.line in script.path.read_text().splitlines()[note["line"] - 1]
    assert report["verdict"] == "same"
