"""For a queue that sends SIGTERM before it ends a job, and starts the job again with the same command."""

import os
import signal
import sys

import torch
from torch import nn

PATH = "run/state.pt"
stop = False


def on_term(signum, frame):
    global stop
    stop = True


signal.signal(signal.SIGTERM, on_term)
torch.manual_seed(0)
g = torch.Generator().manual_seed(9)
x = torch.randn(120, 6, generator=g)
y = torch.sin(x).sum(1, keepdim=True)

model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))
opt = torch.optim.RMSprop(model.parameters(), lr=2e-3, momentum=0.5)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=50)
state = {"epoch": 0, "pos": 0, "order": None}


def save():
    os.makedirs("run", exist_ok=True)
    torch.save({
        "model": model.state_dict(), "opt": opt.state_dict(), "sched": sched.state_dict(),
        "rng": torch.get_rng_state(), **state}, PATH + ".tmp")
    os.rename(PATH + ".tmp", PATH)


if os.path.exists(PATH):
    saved = torch.load(PATH)
    model.load_state_dict(saved["model"])
    opt.load_state_dict(saved["opt"])
    sched.load_state_dict(saved["sched"])
    torch.set_rng_state(saved["rng"])
    state = {name: saved[name] for name in state}
    print(f"going on in epoch {state['epoch']} at sample {state['pos']}", file=sys.stderr)

while state["epoch"] < 5:
    if state["pos"] == 0:
        state["order"] = torch.randperm(len(x))
    while state["pos"] < len(x):
        rows = state["order"][state["pos"]:state["pos"] + 12]
        loss = (model(x[rows]) - y[rows]).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        state["pos"] += 12
        if stop:
            save()
            print("stopped by SIGTERM, state saved", file=sys.stderr)
            sys.exit(0)
    state["epoch"] += 1
    state["pos"] = 0
    model.eval()
    with torch.no_grad():
        print(f"epoch {state['epoch']} error {(model(x) - y).square().mean().item():.6f}")
    model.train()
    save()
