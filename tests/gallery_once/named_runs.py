"""Names its folder by the time, a random id, the process and the host, as most experiment scripts do."""
import csv
import datetime
import os
import socket
import time
import uuid
from pathlib import Path

import torch
import torch.nn as nn

torch.manual_seed(1)
torch.set_default_dtype(torch.float64)

stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")
run = Path("runs") / ("%s_%s_%s_%d_%d" % (stamp, uuid.uuid4().hex, socket.gethostname(), os.getpid(), time.time_ns()))
run.mkdir(parents=True)

model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
x = torch.randn(32, 8)
y = x.sum(1, keepdim=True)
with open(run / "log.csv", "w", newline="") as file:
    rows = csv.writer(file)
    for step in range(12):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rows.writerow([step, "%.10f" % loss.item()])
        if step % 4 == 3:
            # A name that a second writer would draw differently.
            torch.save(model.state_dict(), run / ("%s-%d.pt" % (uuid.uuid1(), time.perf_counter_ns())))
(Path("runs") / "latest").symlink_to(run.name)
print("folders", len([one for one in Path("runs").iterdir() if not one.is_symlink()]))
print("files", sorted(one.suffix for one in run.iterdir()))
print((Path("runs") / "latest" / "log.csv").read_text())
