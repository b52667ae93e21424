"""A replicated script records one run in its tracker."""

from textwrap import dedent

from support.forked_commands import samestep

TRAINS = """
import torch
import wandb

torch.manual_seed(1)
run = wandb.init(project="tiny", config={"lr": 0.1})
x = torch.randn(64, 10)
y = (x.sum(1) > 0).long()
model = torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=wandb.config.lr)
for a, b in zip(x.split(8), y.split(8)):
    loss = torch.nn.functional.cross_entropy(model(a), b)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    wandb.log({"loss": loss.item()})
run.finish()
print("ended")
"""


def test_one_run_is_recorded_in_wandb(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(dedent(TRAINS))

    ended = samestep("run", "-n", 2, script, WANDB_MODE="offline", WANDB_SILENT="true")

    assert (ended.code, ended.out) == (0, "ended\n"), ended.err
    assert len(list(tmp_path.glob("wandb/offline-run-*/*.wandb"))) == 1
