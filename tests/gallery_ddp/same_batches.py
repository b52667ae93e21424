"""Fine-tuning loop whose collate function makes dicts. The data is not sharded."""
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader


class Tagger(nn.Module):
    def __init__(self, words=40, width=12):
        super().__init__()
        self.embedding = nn.Embedding(words, width, padding_idx=0)
        self.score = nn.Linear(width, 3)

    def forward(self, batch):
        mask = batch["attention_mask"].unsqueeze(-1)
        pooled = (self.embedding(batch["input_ids"]) * mask).sum(1) / mask.sum(1)
        logits = self.score(pooled)
        return {"loss": nn.functional.cross_entropy(logits, batch["labels"]), "logits": logits}


def collate(rows):
    ids = nn.utils.rnn.pad_sequence([row["input_ids"] for row in rows], batch_first=True)
    labels = torch.tensor([row["label"] for row in rows])
    return {"input_ids": ids, "attention_mask": (ids > 0).double(), "labels": labels}


def sentences(count):
    g = torch.Generator().manual_seed(21)
    for _ in range(count):
        length = int(torch.randint(3, 9, (), generator=g))
        ids = torch.randint(1, 40, (length,), generator=g)
        yield {"input_ids": ids, "label": int(ids.sum()) % 3}


def main():
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(17)
    model = DistributedDataParallel(Tagger())
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    generator = torch.Generator().manual_seed(17)
    loader = DataLoader(list(sentences(96)), 24, shuffle=True, collate_fn=collate, generator=generator)
    for epoch in range(4):
        for batch in loader:
            loss = model(batch)["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.8f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
