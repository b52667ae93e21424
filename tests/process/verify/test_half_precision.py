"""Faults of scripts in bfloat16 are found in the first step, where rounding is smallest."""

from pathlib import Path

import pytest

from gallery_ddp import manifest

SCRIPT = Path(manifest.__file__).parent / "averaged_by_hand.py"
HALF = (
    ("torch.set_default_dtype(torch.float64)", "torch.set_default_dtype(torch.float32)"),
    (
        "loss = F.nll_loss(model(images[chosen])",
        "with torch.autocast('cpu', torch.bfloat16): loss = F.nll_loss(model(images[chosen])",
    ),
)
FAULTS = {
    "gradient-scale": ("param.grad.data /= size", "param.grad.data /= size * (0.95 if size > 1 else 1)"),
    "samples-left-out": (
        "mine = partition.use(rank)\n",
        "mine = partition.use(rank)[: 96 // size - (size > 1)]\n",
    ),
}


def changed(path, *changes):
    text = SCRIPT.read_text()
    for old, new in (*HALF, *changes):
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    return path


def outcome(report):
    return report["verdict"], [one["code"] for one in report["findings"]]


def test_rounding_of_half_precision_is_no_difference(verifier, tmp_path):
    assert outcome(verifier.verify(changed(tmp_path / "train.py"), workers=(2, 3, 4))) == ("same", [])


@pytest.mark.parametrize("cause", FAULTS)
def test_a_fault_of_a_few_percent_is_found(verifier, tmp_path, cause):
    path = changed(tmp_path / "train.py", FAULTS[cause])
    report = verifier.verify(path)
    assert outcome(report) == ("different", [cause]), report["findings"]
