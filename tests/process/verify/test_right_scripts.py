"""`verify` finds no fault in correct scripts of many distributed styles."""

import pytest

from gallery_right.manifest import SCRIPTS
from support.tiers import mostly_long, stem

MAY_BE_MISSING = {"evaluation", "second-epoch", "later-steps"}
"""What the script does not reach, and steps whose samples a rounding error may change."""
SHORT = (
    *("fp16_compress_hook", "fsdp2", "gather_and_cut", "join_uneven", "pipeline_by_hand", "tensor_parallel"),
)
"""Scripts whose ranks differ in another way each: gradients, shards of weights, rows, layers, states."""


def codes(report):
    return sorted({finding["code"] for finding in report["findings"]})


@pytest.mark.parametrize("script", mostly_long(SCRIPTS, SHORT, stem))
def test_a_correct_script_has_no_fault(verifier, script):
    options = {"workers": script.workers, "steps": script.steps, "device": script.device}
    report = verifier.verify(script.path, **options, hang_s=30.0)
    assert (report["verdict"], codes(report)) == (script.verdict, sorted(script.codes)), report["findings"]
    assert set(report["not_compared"]) - MAY_BE_MISSING == set(script.missing) - MAY_BE_MISSING
