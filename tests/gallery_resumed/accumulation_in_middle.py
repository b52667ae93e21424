import argparse
import glob
import os

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--micro_batch", type=int, default=6)
parser.add_argument("--accumulate", type=int, default=4)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--save_every", type=int, default=10, help="micro-batches")
parser.add_argument("--resume", default=None, help="'last', or a file")
args = parser.parse_args()

torch.manual_seed(31)
g = torch.Generator().manual_seed(31)
tokens = torch.randint(0, 30, (144, 8), generator=g)
labels = (tokens.float().mean(1) > 14.5).long()


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.EmbeddingBag(30, 16)
        self.mlp = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x):
        return self.mlp(self.embedding(x))


model = Bag()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=18)
seen = 0
if args.resume:
    path = max(glob.glob("ckpt-*.pt")) if args.resume == "last" else args.resume
    ckpt = torch.load(path)
    model.load_state_dict(ckpt["model"])
    optimizer.load_state_dict(ckpt["optimizer"])
    scheduler.load_state_dict(ckpt["scheduler"])
    seen = ckpt["seen"]
    print("resuming from", path)

per_epoch = len(tokens) // args.micro_batch
for epoch in range(seen // per_epoch, args.epochs):
    order = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(epoch))
    for i, rows in enumerate(order.split(args.micro_batch)):
        if epoch * per_epoch + i < seen:
            continue
        loss = nn.functional.cross_entropy(model(tokens[rows]), labels[rows]) / args.accumulate
        loss.backward()
        if (i + 1) % args.accumulate == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        seen += 1
        if seen % args.save_every == 0:
            torch.save({
                "model": model.state_dict(), "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(), "seen": seen}, f"ckpt-{seen:04d}.pt.tmp")
            os.replace(f"ckpt-{seen:04d}.pt.tmp", f"ckpt-{seen:04d}.pt")
    with torch.no_grad():
        accuracy = (model(tokens).argmax(1) == labels).float().mean().item()
    print(f"epoch {epoch} loss {args.accumulate * loss.item():.6f} accuracy {accuracy:.4f}")
