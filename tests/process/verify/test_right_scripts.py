"""`verify` finds no fault in correct scripts of many distributed styles, and finds faults put into them."""

import pytest

from gallery_right.manifest import SCRIPTS

MAY_BE_MISSING = {"evaluation", "second-epoch", "later-steps"}
"""What the script does not reach, and steps whose samples a rounding error may change."""
FAULTS = {
    "accumulation_and_clipping.py": ("if is_last else", "if False else", "accumulation-not-averaged"),
    "fsdp2.py": ("loss.backward()", "(loss * world).backward()", "sum-not-mean"),
    "fp16_compress_hook.py": ("loss.backward()", "(loss * world).backward()", "sum-not-mean"),
    "gather_and_cut.py": ("[:len(dataset)]", "", "padded-evaluation"),
    "join_uneven.py": (".sum() * world / size", ".sum() / size", "divided-twice"),
    "mean_teacher.py": ("dist.all_reduce(right)", "pass", "local-metric"),
    "pipeline_by_hand.py": ("lr=0.01", "lr=0.01 * world", "lr-times-n"),
    "post_local_sgd.py": ("period=1", "period=3", "never-averaged"),
    "ppo.py": ("lr=3e-4", "lr=3e-4 * world", "lr-times-n"),
    "sorted_folder.py": ("sorted(folder.glob", "list(folder.glob", "folder-order"),
    "tensor_parallel.py": ("torch.manual_seed(4)", "torch.manual_seed(4 + rank)", "never-averaged"),
    "very_deep.py": ("y[batch])", "y[batch], label_smoothing=1e-3 * (world > 1))", "gradient"),
}
"""By script: text, its faulty replacement, and the cause that is found then."""


def codes(report):
    return sorted({finding["code"] for finding in report["findings"]})


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name.removesuffix(".py"))
def test_a_correct_script_has_no_fault(verifier, script):
    options = {"workers": script.workers, "steps": script.steps, "device": script.device}
    report = verifier.verify(script.path, **options, hang_s=30.0)
    assert (report["verdict"], codes(report)) == (script.verdict, sorted(script.codes)), report["findings"]
    assert set(report["not_compared"]) - MAY_BE_MISSING == set(script.missing) - MAY_BE_MISSING


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_a_fault_put_into_a_correct_script_is_found(verifier, tmp_path, name):
    script = next(one for one in SCRIPTS if one.name == name)
    right, faulty, cause = FAULTS[name]
    text = script.path.read_text()
    assert right in text
    (tmp_path / name).write_text(text.replace(right, faulty))
    for number in range(1, 13):
        (tmp_path / f"data_{number}.py").write_text("data " * number)
    report = verifier.verify(tmp_path / name, workers=script.workers[:1], steps=script.steps, hang_s=30.0)
    assert report["verdict"] == ("same but for exceptions" if cause == "folder-order" else "different")
    assert cause in codes(report), report["findings"]
