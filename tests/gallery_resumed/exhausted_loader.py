import sys
from pathlib import Path

import torch
from torch import nn

CHECKPOINT = Path("checkpoints/last.pt")


class StatefulLoader:
    """Shuffled batches; goes on behind the last batch when its state is loaded."""

    def __init__(self, tensors, batch_size, seed=0):
        self.tensors, self.batch_size, self.seed = tensors, batch_size, seed
        self.epoch = self.next_batch = 0
        self.is_loaded = False

    def __len__(self):
        return len(self.tensors[0]) // self.batch_size

    def __iter__(self):
        if not self.is_loaded:
            self.next_batch = 0
        self.is_loaded = False
        g = torch.Generator().manual_seed(self.seed * 1000 + self.epoch)
        order = torch.randperm(len(self.tensors[0]), generator=g)
        while self.next_batch < len(self):
            rows = order[self.next_batch * self.batch_size:][:self.batch_size]
            self.next_batch += 1
            yield [tensor[rows] for tensor in self.tensors]

    def state_dict(self):
        return {"next_batch": self.next_batch}

    def load_state_dict(self, state):
        self.next_batch = state["next_batch"]
        self.is_loaded = True


def main(resume, epochs=5):
    torch.manual_seed(3)
    g = torch.Generator().manual_seed(3)
    x = torch.randn(128, 5, generator=g)
    y = x.prod(1, keepdim=True)
    loader = StatefulLoader((x, y), 16)
    model = nn.Sequential(nn.Linear(5, 40), nn.ELU(), nn.Linear(40, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    first_epoch = 0
    if resume:
        state = torch.load(CHECKPOINT)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        first_epoch = state["epoch"]
        print(f"resuming with epoch {first_epoch}")

    for epoch in range(first_epoch, epochs):
        loader.epoch = epoch
        for a, b in loader:
            loss = nn.functional.huber_loss(model(a), b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            print(f"epoch {epoch}: {nn.functional.huber_loss(model(x), y).item():.6f}")
        CHECKPOINT.parent.mkdir(exist_ok=True)
        torch.save({
            "model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict(),
            "epoch": epoch + 1}, CHECKPOINT)
    print("done")


if __name__ == "__main__":
    main("--resume" in sys.argv[1:])
