"""Reads its learning rate from cfg.json and halves it there; counts the rows of its log before it appends one."""
import csv
import json
import os

import torch
import torch.nn as nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(31)

if not os.path.exists("cfg.json"):
    with open("cfg.json", "w") as f:
        json.dump({"lr": 0.2, "runs": 0}, f)
if not os.path.exists("runs.csv"):
    with open("runs.csv", "w", newline="") as f:
        csv.writer(f).writerow(["row", "lr", "loss"])

x = torch.randn(60, 5)
y = x @ torch.randn(5, 1) + 0.1 * torch.randn(60, 1)
model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

for step in range(24):
    with open("cfg.json") as f:
        config = json.load(f)
    for group in optimizer.param_groups:
        group["lr"] = config["lr"]
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    if step % 8 == 7:
        config["lr"] /= 2
    if step == 23:
        config["lr"] = 0.1
        config["runs"] += 1
    with open("cfg.json", "w") as f:
        json.dump(config, f)
    with open("runs.csv", newline="") as f:
        rows = len(list(csv.reader(f)))
    with open("runs.csv", "a", newline="") as f:
        csv.writer(f).writerow([rows, config["lr"], "%.10f" % loss.item()])
    print("row %d, learning rate %.10f, loss %.10f" % (rows, config["lr"], loss.item()))

with open("cfg.json", "r+") as f:
    text = f.read()
    f.seek(0)
    f.write(text.replace("runs", "done"))
    f.seek(0)
    print(f.read())
os.truncate("cfg.json", 0)
with open("cfg.json", "w") as f:
    json.dump({"lr": 0.1, "runs": json.loads(text)["runs"]}, f)
print("size", os.path.getsize("cfg.json"))
