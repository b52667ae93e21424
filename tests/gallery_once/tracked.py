"""Records its run by a tracker that starts a process and a thread under a run id, and by TensorBoard."""
import atexit
import glob
import json
import multiprocessing
import os
import threading
import time
import uuid

import torch
import torch.nn as nn
from torch.utils.tensorboard import SummaryWriter

torch.manual_seed(9)
torch.set_default_dtype(torch.float64)


def write(path, queue):
    with open(path, "a") as file:
        while (row := queue.get()) is not None:
            file.write(json.dumps(row) + "\n")


class Run:
    def __init__(self):
        self.id = uuid.uuid4().hex[:8]
        os.makedirs("track/run-" + self.id)
        self.queue = multiprocessing.get_context("fork").Queue()
        self.writer = multiprocessing.get_context("fork").Process(
            target=write, args=("track/run-%s/history.jsonl" % self.id, self.queue), daemon=True
        )
        self.writer.start()
        self.over, self.beats = threading.Event(), 0
        self.heart = threading.Thread(target=self.beat, daemon=True)
        self.heart.start()
        atexit.register(self.finish)

    def beat(self):
        while not self.over.wait(0.005):
            self.beats += 1

    def log(self, **values):
        self.queue.put(values)

    def finish(self):
        if not self.over.is_set():
            self.over.set()
            self.heart.join()
            self.queue.put(None)
            self.writer.join()
            print("finished", self.beats > 0, self.writer.exitcode)
            for path in glob.glob("track/*/history.jsonl"):
                print(open(path).read())


run = Run()
board = SummaryWriter("boards")
model = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
x = torch.randn(24, 6)
for step in range(10):
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.log(step=step, loss=round(loss.item(), 10))
    board.add_scalar("loss", loss.item(), step)
    time.sleep(0.002)
board.close()
print("runs", len(glob.glob("track/*")), "event files", len(glob.glob("boards/*")))
