"""`verify` notes what is wrong on one worker already; notes leave the verdict as it is."""

import pytest

from gallery_notes.manifest import SCRIPTS


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name.removesuffix(".py"))
def test_a_mistake_on_one_worker_is_noted(verifier, script):
    report = verifier.verify(script.path, steps=8)
    found = [(one["code"], one["gravity"], one["workers"]) for one in report["findings"]]
    assert found == [(script.code, "note", 1)]
    assert report["verdict"] == "same"
