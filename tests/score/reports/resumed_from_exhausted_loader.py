"""A checkpoint at the end of an epoch has an exhausted loader: after a resume the next epoch has no step."""
import os
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import TensorDataset

WRONG = "wrong" in sys.argv[1:]
CHECKPOINT, EPOCHS = "last.pt", 4


class StatefulLoader:
    """Batches in a random order for each epoch; its state has the position in the epoch."""

    def __init__(self, data, batch_size, seed):
        self.data, self.batch_size = data, batch_size
        self.generator = torch.Generator().manual_seed(seed)
        self.start, self.position = self.generator.get_state(), 0

    def __len__(self):
        return len(self.data) // self.batch_size

    def __iter__(self):
        self.generator.set_state(self.start)
        order = torch.randperm(len(self.data), generator=self.generator)
        while self.position < len(self):
            self.position += 1
            last = self.position * self.batch_size
            yield self.data[order[last - self.batch_size : last]]
        self.start, self.position = self.generator.get_state(), 0

    def state_dict(self):
        return {"start": self.start, "position": self.position}

    def load_state_dict(self, state):
        self.start, self.position = state["start"], state["position"]
        if not WRONG and self.position == len(self):
            self.generator.set_state(self.start)
            torch.randperm(len(self.data), generator=self.generator)
            self.start, self.position = self.generator.get_state(), 0


def main():
    torch.manual_seed(3)
    x = torch.randn(120, 6)
    loader = StatefulLoader(TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long()), 12, seed=3)
    policy = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    steps = 0
    if os.path.exists(CHECKPOINT):
        state = torch.load(CHECKPOINT)
        policy.load_state_dict(state["policy"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        steps = state["steps"]
    for epoch in range(steps // len(loader), EPOCHS):
        for inputs, labels in loader:
            loss = F.cross_entropy(policy(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            if steps % 5 == 0:
                states = {"policy": policy.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**states, "loader": loader.state_dict(), "steps": steps}, CHECKPOINT)
    print(f"trained {steps} steps, last loss {loss.item() if steps else 0:.4f}")


if __name__ == "__main__":
    main()
