"""A specialized step that was made while gradients were None is used for all later steps: nothing is updated.

In the report `torch.compile` lacks a guard for gradients that are None; here it is written out.
"""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WRONG = "wrong" in sys.argv[1:]


class SpecializedSGD(torch.optim.Optimizer):
    """Keeps the operations of a step, and makes them again if a guard has failed."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})
        self.guard, self.updated = None, []

    @torch.no_grad()
    def step(self, closure=None):
        (group,) = self.param_groups
        present = tuple(p.grad is not None for p in group["params"])
        # The missing guard: gradients that are there again.
        if self.guard is None or (sum(present) < sum(self.guard) if WRONG else present != self.guard):
            self.guard = present
            self.updated = [p for p in group["params"] if p.grad is not None]
        for parameter in self.updated:
            parameter.add_(parameter.grad, alpha=-group["lr"])


def main():
    torch.manual_seed(0)
    features = torch.randn(256, 12)
    labels = (features @ torch.randn(12, 4)).argmax(1)
    loader = DataLoader(TensorDataset(features, labels), batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = SpecializedSGD(model.parameters(), lr=0.1)
    steps = 0
    for epoch in range(4):
        for inputs, targets in loader:
            optimizer.zero_grad()
            if steps != 4:  # this step has no gradients
                loss = nn.functional.cross_entropy(model(inputs), targets)
                loss.backward()
            optimizer.step()
            steps += 1
        print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
