"""A script that does not begin with the same digits each time, as a racing library makes it do."""

import re
from pathlib import Path

import pytest

from gallery_ddp import manifest

LOSS = "loss = F.nll_loss(model(images[chosen]), labels[chosen])"
NUMBER_OF_RUN = "int(__import__('re').search(r'run-(\\d+)', __import__('sys').stdout.name)[1])"
"""From the folder that its output goes to."""


@pytest.fixture
def changed(tmp_path):
    """Returns the script that averages by hand with each run's loss larger than the last one's."""

    def write(by, *, fault=("", "")):
        text = (Path(manifest.__file__).parent / "averaged_by_hand.py").read_text()
        assert LOSS in text
        assert fault[0] in text
        text = text.replace(LOSS, f"{LOSS} * (1 + {by} * {NUMBER_OF_RUN})").replace(*fault)
        (tmp_path / "train.py").write_text(text)
        return tmp_path / "train.py"

    return write


def causes(report):
    return [one["cause"] for one in report["findings"]]


def test_a_small_difference_is_told_and_allowed_for(verifier, changed):
    report = verifier.verify(changed(1e-10), steps=4)
    assert (report["verdict"], causes(report)) == ("same but for exceptions", ["unsteady"]), report
    assert re.search(
        r"another loss, 1\.\d+ and 1\.\d+: a relative difference of 1\.0e-10,",
        report["findings"][0]["message"],
    )


def test_a_fault_is_found_beside_it(verifier, changed):
    path = changed(1e-10, fault=("        param.grad.data /= size\n", ""))
    report = verifier.verify(path, steps=4)
    assert (report["verdict"], causes(report)) == ("different", ["unsteady", "sum-not-mean"])


def test_a_large_one_is_a_missing_seed(verifier, changed):
    report = verifier.verify(changed(1e-3), steps=4)
    assert (report["verdict"], causes(report)) == ("different", ["unseeded"])
