import argparse
import os

import torch
from torch import nn


def get_batches(data, batch_size, epoch):
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(100 + epoch))
    for i in range(0, len(data), batch_size):
        yield data[order[i:i + batch_size]]


class TinyTransformer(nn.Module):
    def __init__(self, vocab=16, width=16):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.layer = nn.TransformerEncoderLayer(width, 2, 32, dropout=0.2, batch_first=True)
        self.head = nn.Linear(width, vocab)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.layer(self.embed(tokens), src_mask=mask))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--checkpoint", default="latest.pt")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    data = torch.randint(0, 4, (96, 9), generator=torch.Generator().manual_seed(5)).cumsum(1) % 16
    model = TinyTransformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=32)
    epoch = 0
    if os.path.exists(args.checkpoint):
        checkpoint = torch.load(args.checkpoint)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        epoch = checkpoint["epoch"]
        print(f"Loaded {args.checkpoint}, epoch {epoch}")

    while epoch < args.epochs:
        model.train()
        for batch in get_batches(data, 12, epoch):
            logits = model(batch[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
        epoch += 1
        print(f"epoch {epoch} loss {loss.item():.6f}")
        torch.save({
            "model": model.state_dict(), "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(), "epoch": epoch}, args.checkpoint)


if __name__ == "__main__":
    main()
