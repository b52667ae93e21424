"""With --split loader the loop runs on slices, with the weights and losses of one worker."""

import re

import pytest

from gallery.manifest import SCRIPTS
from samestep.autopilot.script.options import Options
from support.script_runner import difference, run_script

BEGINNING = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
x, y = torch.randn(30, 5), torch.randint(0, 3, (30,))
y[:13] = -100
loader = DataLoader(TensorDataset(x, y), 7, shuffle=True)
model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
"""
WEIGHTS = "\nprint(sum(p.sum() for p in model.parameters()).item(), torch.rand(1).item())"


def run(processes, tmp_path, text, size, **options):
    path, folder = tmp_path / "script.py", tmp_path / str(size)
    path.write_text(BEGINNING + text)
    folder.mkdir()
    return processes.run(run_script, size, path, (), folder, 1, Options(split="loader", **options))


LOSSES = {
    "labels that do not count": "F.cross_entropy(model(a), b)",
    "classes that weigh": "F.cross_entropy(model(a), b.clamp(min=0), weight=torch.tensor([0.2, 1.0, 3.0]))",
    "a sum": "F.cross_entropy(model(a), b, reduction='sum')",
    "a mean over elements": "model(a).square().mean()",
    "a factor": "0.3 * F.mse_loss(model(a), a[:, :3])",
}


@pytest.mark.parametrize(
    ("loss", "load", "sizes"),
    [
        *((loss, "auto", (2,)) for loss in LOSSES),
        ("labels that do not count", "shared", (2, 3)),
        ("labels that do not count", "replicated", (2,)),
    ],
)
def test_weights_and_printed_losses_are_those_of_one_worker(processes, tmp_path, loss, load, sizes):
    text = f"""
for epoch in range(3):
    for a, b in loader:
        optimizer.zero_grad()
        loss = {LOSSES[loss]}
        loss.backward()
        optimizer.step()
        print(loss.item())
model.eval()
print(sum(len(a) for a, _ in loader))
print(sum(F.cross_entropy(model(a), b.clamp(min=0)) for a, b in loader).item())
"""
    ((serial, _, trace),) = run(processes, tmp_path, text + WEIGHTS, 1, load=load)
    assert not trace
    for size in sizes:
        ranks = run(processes, tmp_path, text + WEIGHTS, size, load=load)
        assert not any(trace for _, _, trace in ranks), ranks
        assert difference(serial, ranks[0][0]) is None
        assert any(line.endswith("the loop runs on each worker's slice of a batch") for line in ranks[0][1])
        assert any(line.endswith("(--split loader)") for line in ranks[0][1])


def test_weights_of_no_module_learn_what_they_learn_on_one_worker(processes, tmp_path):
    text = """
scales = [torch.ones(5, requires_grad=True), nn.Parameter(torch.ones(5))]
factor = torch.ones((), requires_grad=True)
optimizer = torch.optim.SGD([*model.parameters(), *scales, factor], 0.1)
for step, (a, b) in enumerate(loader):
    optimizer.zero_grad()
    loss = F.mse_loss(model(a * scales[step % 2]) * factor, a[:, :3])
    loss.backward()
    optimizer.step()
    print(loss.item(), factor.item(), *(one.sum().item() for one in scales))
"""
    ((serial, _, trace),) = run(processes, tmp_path, text + WEIGHTS, 1)
    assert not trace
    ranks = run(processes, tmp_path, text + WEIGHTS, 2)
    assert not any(trace for _, _, trace in ranks), ranks
    assert difference(serial, ranks[0][0]) is None


def test_the_loop_gets_slices_of_batches(processes, tmp_path):
    text = """
for a, b in loader:
    print(len(a), end=" ")
    model(a).mean().backward()
"""
    first, second, third = run(processes, tmp_path, text, 3)
    assert first[0] == "3 3 3 3 2 "  # the last batch has two samples, which are too few to cut
    assert second[0] == third[0] == "2 2 2 2 2 "


@pytest.mark.parametrize("name", ["toplevel_cnn.py", "per_batch_scheduler.py"])
def test_scripts_that_print_only_losses_have_equal_output(processes, tmp_path, name):
    printed = _gallery(processes, tmp_path, name)
    patterns = next(one for one in SCRIPTS if one.name == name).timing_patterns
    assert difference(printed[1], printed[2], leave_out=patterns) is None


def test_samples_that_a_script_counts_are_those_of_its_slice(processes, tmp_path):
    printed = _gallery(processes, tmp_path, "main_argparse.py")
    losses = {size: re.findall(r"Loss: (\S+)", text) for size, text in printed.items()}
    assert losses[1]
    assert difference("\n".join(losses[1]), "\n".join(losses[2])) is None
    assert "[100/407" in printed[1]
    assert "[50/407" in printed[2]


def _gallery(processes, tmp_path, name):
    script = next(one for one in SCRIPTS if one.name == name)
    printed = {}
    for size in (1, 2):
        folder = tmp_path / str(size)
        folder.mkdir()
        options = Options(split="loader")
        ranks = processes.run(run_script, size, script.path, script.arguments, folder, 1, options)
        assert not any(trace for _, _, trace in ranks), ranks
        printed[size] = ranks[0][0]
    return printed


REFUSED = {
    "ended without a backward": "for a, b in loader: model(a)",
    "reduced over the samples": "for a, b in loader: model(a).logsumexp((0, 1)).backward()",
    "draws random numbers for its slice": "for a, b in loader: model(torch.randn_like(a)).sum().backward()",
    "gradient argument": "for a, b in loader: model(a).mean().backward(torch.tensor(2.0))",
    "torch.autograd.grad": "for a, b in loader: torch.autograd.grad(model(a).mean(), model[0].weight)",
    "one row per sample": "for a in DataLoader([(1, 'a')] * 8, 4): model(x)",
}


@pytest.mark.parametrize("what", REFUSED)
def test_unsupported_loops_are_refused_with_the_cause(processes, tmp_path, what):
    for _, _, trace in run(processes, tmp_path, REFUSED[what], 2):
        assert what in trace
        assert "--split call" in trace


def test_passes_in_evaluation_read_whole_batches(processes, tmp_path):
    text = """
for epoch in range(2):
    model.train()
    for a, b in loader:
        model(a).mean().backward()
        with torch.no_grad():
            print(sum(len(c) for c, _ in loader))
    model.eval()
    print(sum(len(a) for a, _ in loader))
"""
    for printed, _, trace in run(processes, tmp_path, text, 2):
        assert not trace
        assert set(printed.split()) == {"30"}
