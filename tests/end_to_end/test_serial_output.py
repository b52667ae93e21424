"""The output of a serial script on several workers is printed once."""

import re

import pytest

from support.forked_commands import samestep

SCRIPT = """
import os, sys, warnings, torch
model = torch.nn.Linear(4, 1)
print("begin")
for step in range(3):
    model(torch.randn(6, 4)).sum().backward()
    print(f"\\rstep {step + 1}/3", end="", file=sys.stderr, flush=True)  # a progress bar
print(file=sys.stderr)
warnings.warn("beware")
os.write(1, b"end\\n")
"""


@pytest.fixture
def prog(tmp_path):
    path = tmp_path / "prog.py"
    path.write_text(SCRIPT)
    return path


def test_output_progress_bars_and_warnings_are_printed_once(prog):
    ended = samestep("run", "-n", 2, prog)

    assert ended.code == 0
    assert ended.out == "begin\nend\n"
    for said in ("step 1/3", "step 3/3", "beware"):
        assert len(re.findall(f'{said}(?!")', ended.err)) == 1, ended.err


def test_a_former_name_of_samestep_works_and_warns_once(tmp_path):
    path = tmp_path / "prog.py"
    declared = "model = samestep.split(torch.nn.Linear(4, 1), dim=0)"
    path.write_text(SCRIPT.replace("model = torch.nn.Linear(4, 1)", f"import samestep\n{declared}"))

    ended = samestep("run", "-n", 2, path)

    assert (ended.code, ended.out) == (0, "begin\nend\n")
    assert "prog.py:4: DeprecationWarning: samestep.split is now samestep.batch_dim" in ended.err
    assert ended.err.count("DeprecationWarning") == 1
    assert "3 calls split" in ended.err
