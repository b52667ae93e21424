"""A data set whose cache Python writes and Arrow maps, a tokenizer's file, and losses in an HDF5 file."""

import json
from pathlib import Path

import datasets
import h5py
import pandas as pd
import torch
from tokenizers import Tokenizer, models
from torch import nn

torch.manual_seed(0)
lines = [json.dumps({"x": row}) for row in torch.randn(64, 4).tolist()]
Path("rows.jsonl").write_text("\n".join(lines))
rows = datasets.load_dataset("json", data_files="rows.jsonl", split="train", cache_dir="cache")
rows = rows.map(lambda row: {"y": [sum(row["x"])]}).with_format("torch")
Path("run").mkdir()
Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a")).save("run/tokenizer.json")
print(Tokenizer.from_file("run/tokenizer.json").encode("b").ids)
pd.DataFrame({"loss": [0.5]}).to_parquet("run/losses.parquet")
print(pd.read_parquet("run/losses.parquet"))
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for batch in torch.utils.data.DataLoader(rows, batch_size=16):
    loss = (model(batch["x"]) - batch["y"]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with h5py.File("losses.h5", "a") as file:
        file[str(len(file))] = loss.item()
with h5py.File("losses.h5") as file:
    print([f"{loss[()]:.5f}" for loss in file.values()], Path("cache").exists())
