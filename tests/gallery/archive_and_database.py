"""Logs into a tar archive, a SQLite database and a raw file, hands numbers through a fifo, saves TorchScript."""
import io
import os
import sqlite3
import tarfile
import warnings

import torch
import torch.nn as nn

warnings.filterwarnings("ignore", category=DeprecationWarning)
torch.set_default_dtype(torch.float64)
torch.manual_seed(34)

x = torch.randn(40, 4)
y = torch.sin(x.sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 1))
optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01)

os.mkfifo("numbers")
fifo = os.open("numbers", os.O_RDWR)
if os.path.exists("scripted.jit"):
    print("before: %.10f" % torch.jit.load("scripted.jit")(x).sum().item())

for step in range(5):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    text = "%.10f\n" % loss.item()

    with tarfile.open("log.tar", "a") as archive:
        info = tarfile.TarInfo("step%d" % len(archive.getnames()))
        info.size = len(text)
        archive.addfile(info, io.BytesIO(text.encode()))
        count = len(archive.getnames())
    with sqlite3.connect("log.db") as database:
        database.execute("create table if not exists steps (loss text)")
        database.execute("insert into steps values (?)", (text,))
        rows = database.execute("select count(*) from steps").fetchone()[0]
    database.close()
    with io.FileIO("log.raw", "a") as raw:
        raw.write(text.encode())
    os.write(fifo, text.encode())
    read = float(os.read(fifo, 100))
    print("step %d: %d in the archive, %d rows, %d bytes, %.10f"
          % (step, count, rows, os.stat("log.raw").st_size, read))

os.close(fifo)
os.remove("numbers")
scripted = torch.jit.script(nn.Linear(4, 1))
with torch.no_grad():
    scripted.weight.copy_(model[0].weight[:1])
    scripted.bias.copy_(model[0].bias[:1])
torch.jit.save(scripted, "scripted.jit")
print("after: %.10f" % torch.jit.load("scripted.jit")(x).sum().item())
