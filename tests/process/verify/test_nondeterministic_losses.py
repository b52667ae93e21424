"""A first loss that differs between runs is an exception if the difference is small, else a missing seed."""

import re
from pathlib import Path

import pytest

from gallery_ddp import manifest

LOSS = "loss = F.nll_loss(model(images[chosen]), labels[chosen])"
NUMBER_OF_RUN = "int(__import__('re').search(r'run-(\\d+)', __import__('sys').stdout.name)[1])"
"""Expression for the number of the run, from the folder of its stdout."""


@pytest.fixture
def changed(tmp_path):
    """Returns a function that writes a script whose loss grows from run to run."""

    def write(by, *, fault=("", "")):
        text = (Path(manifest.__file__).parent / "averaged_by_hand.py").read_text()
        assert LOSS in text
        assert fault[0] in text
        text = text.replace(LOSS, f"{LOSS} * (1 + {by} * {NUMBER_OF_RUN})").replace(*fault)
        (tmp_path / "train.py").write_text(text)
        return tmp_path / "train.py"

    return write


def causes(report):
    return [one["code"] for one in report["findings"]]


def test_a_small_difference_is_an_exception_and_counts_as_rounding(verifier, changed):
    report = verifier.verify(changed(1e-10), steps=4)
    assert (report["verdict"], causes(report)) == ("same but for exceptions", ["unsteady"]), report
    (finding,) = report["findings"]
    assert finding["max_relative_deviation"] == pytest.approx(1e-10, rel=0.01)
    assert re.search(r"1\.\d+ and 1\.\d+", finding["message"])


def test_a_fault_is_found_beside_a_small_difference(verifier, changed):
    path = changed(1e-10, fault=("        param.grad.data /= size\n", ""))
    report = verifier.verify(path, steps=4)
    assert (report["verdict"], causes(report)) == ("different", ["unsteady", "sum-not-mean"])


def test_a_large_difference_is_a_missing_seed(verifier, changed):
    report = verifier.verify(changed(1e-3), steps=4)
    assert (report["verdict"], causes(report)) == ("inconclusive", ["unseeded"])


PRINTS_IN_A_THREAD = f"""
import threading

import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
number = {NUMBER_OF_RUN}


def show():
    print("progress", "." if number < 2 else "of a later run")


for _ in range(3):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).square().mean()
    loss.backward()
    optimizer.step()
    thread = threading.Thread(target=show)
    thread.start()
    thread.join()
    print("loss", loss.item())
"""


def test_output_of_other_threads_is_not_compared(verifier, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(PRINTS_IN_A_THREAD)
    report = verifier.verify(script, steps=3)
    assert (report["verdict"], report["findings"]) == ("same", [])
