"""`verify` finds no fault in correct scripts of many distributed styles, and finds faults put into them."""

import pytest

from gallery_right.manifest import SCRIPTS
from support.tiers import mostly_long, stem

MAY_BE_MISSING = {"evaluation", "second-epoch", "later-steps"}
"""What the script does not reach, and steps whose samples a rounding error may change."""
SHORT = (
    *("fp16_compress_hook", "fsdp2", "gather_and_cut", "join_accumulated", "join_uneven"),
    "pipeline_by_hand",
    *("tensor_and_data_parallel", "tensor_parallel"),
)
"""Scripts whose ranks differ in another way each: gradients, shards of weights, rows, layers, states."""

FAULTS = {
    "fp16_compress_hook": ("loss.backward()", "(loss * world).backward()", "sum-not-mean"),
    "fsdp2": ("loss.backward()", "(loss * world).backward()", "sum-not-mean"),
    "join_uneven": (".sum() * world / size", ".sum() / size", "divided-twice"),
    "post_local_sgd": ("period=1", "period=3", "never-averaged"),
    "tensor_parallel": ("torch.manual_seed(4)", "torch.manual_seed(4 + rank)", "never-averaged"),
    "very_deep": ("y[batch])", "y[batch], label_smoothing=1e-3 * (world > 1))", "gradient"),
}
"""By script: text, its faulty replacement, and the cause that is found then.

A comparison of shards, of compressed gradients or in double precision could also see nothing.
"""
SHORT_FAULTS = ("fp16_compress_hook", "tensor_parallel")


def codes(report):
    return sorted({finding["code"] for finding in report["findings"]})


@pytest.mark.parametrize("script", mostly_long(SCRIPTS, SHORT, stem))
def test_a_correct_script_has_no_fault(verifier, script):
    options = {"workers": script.workers, "steps": script.steps, "device": script.device}
    report = verifier.verify(script.path, **options, hang_s=30.0)
    assert (report["verdict"], codes(report)) == (script.verdict, sorted(script.codes)), report["findings"]
    assert set(report["not_compared"]) - MAY_BE_MISSING == set(script.missing) - MAY_BE_MISSING


@pytest.mark.parametrize("name", mostly_long(FAULTS, SHORT_FAULTS))
def test_a_fault_put_into_a_correct_script_is_found(verifier, tmp_path, name):
    script = next(script for script in SCRIPTS if stem(script) == name)
    right, faulty, cause = FAULTS[name]
    text = script.path.read_text()
    assert right in text
    (tmp_path / script.name).write_text(text.replace(right, faulty))
    report = verifier.verify(
        tmp_path / script.name, workers=script.workers[:1], steps=script.steps, hang_s=30.0
    )
    assert report["verdict"] == "different"
    assert cause in codes(report), report["findings"]
