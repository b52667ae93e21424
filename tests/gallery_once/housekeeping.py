"""Locks by process ids, logs with rotation, shows progress, uses temporary files, and tidies up at its end."""
import atexit
import fcntl
import logging
import logging.handlers
import os
import sys
import tempfile
import weakref
from pathlib import Path

import torch
import torch.nn as nn

torch.manual_seed(11)
torch.set_default_dtype(torch.float64)

lock = os.open("run.pid", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
os.write(lock, b"%d\n" % os.getpid())


def unlock():
    print("unlocked", Path("run.pid").read_text() == "%d\n" % os.getpid())
    Path("run.pid").unlink()
    os.close(lock)


atexit.register(unlock)
atexit.register(lambda: Path("ended.txt").open("a").write("once\n"))

log = logging.getLogger("train")
log.setLevel(logging.INFO)
log.addHandler(logging.handlers.RotatingFileHandler("train.log", maxBytes=120, backupCount=3))
log.addHandler(logging.StreamHandler(sys.stdout))
os.makedirs("scratch")
tempfile.tempdir = "scratch"


def kept():
    """Return the number of temporary files, without the folder that torch makes for its compiler."""
    return len([one for one in os.listdir("scratch") if "inductor" not in one])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 20), nn.Linear(20, 1)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
weakref.finalize(model, print, "the model ends")
x = torch.randn(24, 6)
with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile("w+", suffix=".txt") as temporary:
    for step in range(12):
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.info("step %d: loss %.8f", step, loss.item())
        temporary.write("%.8f\n" % loss.item())
        torch.save(model.state_dict(), os.path.join(folder, "%d.pt" % step))
        print("\r[%-12s] %d/12" % ("#" * (step + 1), step + 1), end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    temporary.flush()
    temporary.seek(0)
    print(len(os.listdir(folder)), kept(), temporary.read())
print(kept(), sorted(os.listdir(".")))
