"""Waits for all its children: by os.wait until there are none, by programs, by pools, and by their signals."""
import multiprocessing
import os
import signal
import subprocess
import warnings

import psutil
import torch
import torch.nn as nn

warnings.filterwarnings("ignore", "This process ", DeprecationWarning)  # it has the number of the process
torch.manual_seed(13)
torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
x = torch.randn(24, 6)


def step():
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def all_ended():
    codes = []
    while True:
        try:
            codes.append(os.waitstatus_to_exitcode(os.wait()[1]))
        except ChildProcessError:
            return sorted(codes)


print("at first", len(psutil.Process().children(recursive=True)), multiprocessing.active_children())
ended = []
signal.signal(signal.SIGCHLD, lambda *_: ended.append(1))
print("%.10f" % step())
for code in (0, 3):
    if not os.fork():
        step()
        os._exit(code)
print("%.10f" % step())
print("codes", all_ended())
print("signals", len(ended) > 0)
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
program = subprocess.Popen(["sh", "-c", "exit 4"])
print("program", program.wait(), "%.10f" % step())
process = multiprocessing.get_context("fork").Process(target=step)
process.start()
print("one", len(multiprocessing.active_children()) <= 1, len(psutil.Process().children()) <= 1)
process.join()
for _ in range(4):
    print("%.10f" % step())
try:
    print("any", os.waitpid(-1, os.WNOHANG), os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG))
except ChildProcessError:
    print("no children")
# The system reaps its children: the script does not wait for them.
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if not os.fork():
    os._exit(0)
print("%.10f" % step())
print("all", all_ended(), len(psutil.Process().children(recursive=True)))
