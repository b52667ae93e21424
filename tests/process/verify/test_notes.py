"""`verify` notes mistakes that exist on one worker already; notes do not change the verdict."""

import pytest

from gallery_notes.manifest import SCRIPTS
from support.tiers import mostly_long, stem


# Each note has a test of its observer in one process.
@pytest.mark.parametrize("script", mostly_long(SCRIPTS, ("clipped_scaled", "forgotten_head"), stem))
def test_a_mistake_on_one_worker_is_noted(verifier, script):
    report = verifier.verify(script.path, steps=script.steps)
    found = [(one["code"], one["gravity"], one["workers"], one["file"]) for one in report["findings"]]
    assert found == [(script.code, "note", 1, str(script.path))]
    line = script.path.read_text().splitlines()[report["findings"][0]["line"] - 1]
    assert script.line in line
    assert report["verdict"] == "same"
