"""The examples run on a device that is as strict as CUDA, which notices what is not fit for it."""

from pathlib import Path

import pytest

from gallery.manifest import SCRIPTS
from samestep.autopilot.helpers import slices
from samestep.autopilot.script.options import Options
from support.careless_runs import run_careless
from support.script_runner import READS, difference, run_script
from support.tiers import mostly_long

EXAMPLES = Path(__file__).parents[3] / "examples"
SPLIT = Options(short_calls="split")
COUNTED = (r"test images right$",)
"""Lines with a number of samples, of which rounding in single precision may change one."""
SERIAL = ("gan", "gpt", "image_classification", "lbfgs", "serial")


@pytest.mark.parametrize("name", mostly_long(SERIAL, ("gpt", "serial")))
def test_an_example_has_equal_output_with_a_helper(processes, name, tmp_path):
    path, printed = EXAMPLES / f"{name}.py", []
    for helpers in (0, 1):
        folder = tmp_path / str(helpers)
        folder.mkdir()
        ran = path, (), folder, 1, SPLIT, helpers == 1, helpers
        ((text, account, trace),) = processes.run(run_script, 1, *ran)
        assert not trace, trace
        printed.append(text)
    assert printed[0]
    assert difference(*printed, leave_out=COUNTED, digits=3) is None
    assert not [line for line in account if " unsplit" in line or line.startswith(READS)], account


PRINTS = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def part(self, batch):
        print("part")
        return self.layer(batch)

    def forward(self, batch):
        return checkpoint(self.part, batch, use_reentrant=False)

torch.manual_seed(0)
net, batch = Net(), torch.rand(8, 4)
for _ in range(3):
    net(batch).sum().backward()
"""


def test_a_recomputed_forward_prints_in_no_check(processes, tmp_path):
    """A checkpoint prints in each forward and each backward; the check computes both several times."""
    script = tmp_path / "prints.py"
    script.write_text(PRINTS)
    ((printed, account, trace),) = processes.run(run_script, 1, script, (), tmp_path, 1, SPLIT, True, 1)
    assert not trace
    assert printed.split() == ["part"] * 6
    assert any("Net" in line and slices.PRINTS in line for line in account), account


@pytest.mark.parametrize(
    ("name", "how", "failure"),
    [
        ("gpt_loss_inside.py", "filling_indices", "device-side assert triggered (by aten.embedding"),
        ("toplevel_cnn.py", "undefined_statistics", "save_mean"),
        ("language_model.py", "views_as_slices", "hx is not contiguous"),
    ],
)
def test_a_script_fails_without_the_care_that_a_device_needs(processes, name, how, failure, tmp_path):
    """An H100 has shown these: labels among token ids, no saved statistics, a view of a hidden state."""
    script = next(script for script in SCRIPTS if script.name == name)
    ran = how, script.path, script.arguments, tmp_path, 1, SPLIT, True, 1
    ((_, account, trace),) = processes.run(run_careless, 1, *ran)
    assert failure in f"{account} {trace}"


FAILING = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        if x.dtype == torch.float64:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return self.layer(x)

Net()(torch.ones(9, 4))
"""


def test_a_device_that_fails_in_a_check_ends_the_script_in_one_line(processes, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(FAILING)
    ((_, _, trace),) = processes.run(run_script, 1, path, (), tmp_path, 1, SPLIT, False, 1)
    (line,) = trace.splitlines()
    assert line.startswith("samestep: error: ")
    assert "train.py:12" in line
