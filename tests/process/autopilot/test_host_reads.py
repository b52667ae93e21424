"""After its check, a split call reads nothing from a device: samestep's code does not make the host wait."""

from collections import Counter

import numpy as np
import pytest

from support import host_read_cases as cases

STEPS = 30
SCRIPT = """
import random, signal, time
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
signal.signal(signal.SIGTERM, lambda *_: None)
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
x, y = torch.randn(210, 5), torch.randint(0, 3, (210,))
y[:90] = -100
loader = DataLoader(TensorDataset(x, y), 7, shuffle=True)
model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for a, b in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(a), b)
    loss.backward()
    optimizer.step()
    print(loss.item(), random.random(), time.time() > 0)
"""


@pytest.mark.parametrize("name", cases.CASES)
def test_split_calls_read_nothing_from_the_device(processes, name):
    serial = np.array(cases.steps(cases.CASES[name]))
    ((found, reads, split, lines),) = processes.run(cases.counted, 1, name)
    np.testing.assert_allclose(found, serial, rtol=0, atol=1e-11, equal_nan=True)
    assert split == cases.WARM_UP + cases.COUNTED, lines
    assert reads == []


def test_an_output_that_begins_to_depend_on_samples_is_that_of_an_unsplit_call(run):
    serial = cases.beginning_to_depend()
    found, split, unsplit, lines = run(2, cases.beginning_to_depend, options=cases.SPLIT)
    assert found == pytest.approx(serial, rel=0, abs=1e-11)
    assert (split, unsplit) == (3, 3)
    assert any("did not depend on its samples" in line for line in lines), lines


def test_no_line_of_samestep_reads_the_device_in_every_step_of_a_script(processes, tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    ((trace, reads),) = processes.run(cases.of_script, 1, path, tmp_path)
    assert not trace
    assert {place: count for place, count in Counter(reads).items() if count >= STEPS / 2} == {}
