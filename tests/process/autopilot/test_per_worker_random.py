"""With `--random per-worker` each worker has its own repeatable random numbers within split calls."""

import pytest

from samestep.autopilot.script.options import Options
from support.script_runner import run_script

SCRIPT = """
import random
import torch
from torch import nn

class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        self.drawn = torch.rand(x.shape)
        self.each = random.random()
        return self.weight * x + 0 * self.drawn

random.seed(3)
torch.manual_seed(3)
model = Noisy()
for step in range(3):
    model(torch.ones(4, 3)).sum().backward()
    print(step, model.each, model.drawn.flatten().tolist())
for _ in range(2):  # nothing else is drawn in between
    model(torch.ones(4, 3))
    print(model.drawn.flatten().tolist())
print(torch.rand(3).tolist(), random.random())
"""
OWN = Options(random="per-worker")


@pytest.fixture
def run(processes, tmp_path):
    path = tmp_path / "noisy.py"
    path.write_text(SCRIPT)

    def ran(size, options):
        ranks = processes.run(run_script, size, path, (), tmp_path, 1, options)
        assert not any(trace for _, _, trace in ranks), ranks
        return ranks

    return ran


def draws(printed):
    return [eval(line[line.index("[") :]) for line in printed.splitlines()[:-1]]


def test_each_slice_has_its_own_random_numbers_and_ranks_print_the_same(run):
    ranks = run(2, OWN)

    assert ranks[0][0] == ranks[1][0]  # all that a script sees is alike
    assert ranks[0][1][-1] == "random numbers: each worker's own (--random per-worker)"
    found = draws(ranks[0][0])
    halves = [tuple(half) for one in found for half in (one[:6], one[6:])]
    assert len(set(halves)) == len(halves) == 10


def test_a_run_is_repeatable_and_only_its_random_numbers_differ_from_the_serial_run(run):
    ((serial, *_),) = run(1, OWN)
    first, again, common = (run(2, options)[0][0] for options in (OWN, OWN, Options()))

    assert first == again
    assert common == serial
    assert not set(map(tuple, draws(first))) & set(map(tuple, draws(serial)))
    pythons = [[line.split()[1] for line in text.splitlines()[:3]] for text in (first, serial)]
    assert pythons[0] == pythons[1]
