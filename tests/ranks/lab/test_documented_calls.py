"""The calls that the pages of collectives show give the results that the pages state."""

import re
from pathlib import Path

import pytest
import torch

from samestep.ranks.world.thread_world import run_ranks
from samestep_lab.collectives import algorithms

PAGES = Path(__file__).parents[3] / "docs" / "lab" / "collectives"
N = 3
TENSORS = [torch.arange(6.0).reshape(N, 2) + 10 * rank for rank in range(N)]
SUM = sum(TENSORS)
EXPECTED = {
    "naive": [SUM] * N,
    "tree": [SUM] * N,
    "ring": [SUM] * N,
    "halving-doubling": [SUM / N] * N,
    "broadcast": [TENSORS[0]] * N,
    "reduce": [SUM],
    "scatter": list(TENSORS[0]),
    "gather": [torch.stack(TENSORS)],
    "all-gather": [torch.stack(TENSORS)] * N,
    "reduce-scatter": list(SUM),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_documented_call_gives_the_documented_result(name):
    page = (PAGES / f"{name}.md").read_text()
    (choice, call) = re.findall(r"^\*\*Call\.\*\* `(.+?)`, then `(.+?)`", page, re.MULTILINE)[0]

    def on_rank(world):
        tensor = TENSORS[world.place.rank].clone()
        names = {**vars(algorithms), "world": world, "tensor": tensor}
        exec(choice, names)
        result = eval(call, names)
        return torch.stack(list(result)) if isinstance(result, (list, tuple)) else result, tensor

    for (result, tensor), expected in zip(run_ranks(on_rank, N), EXPECTED[name], strict=False):
        torch.testing.assert_close(tensor if result is None else result, expected)
