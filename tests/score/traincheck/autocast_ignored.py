"""A compiler's linear layer computes in single precision under autocast: it is not cast."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WRONG = "wrong" in sys.argv[1:]


class PrimitiveLinear(torch.autograd.Function):
    """The compiler's own operation, which autocast does not know."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        with torch.autocast("cpu", enabled=False):
            return x.float() @ weight.T

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return (gradient @ weight).to(x.dtype), gradient.T @ x.float()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 64, bias=False), nn.Linear(64, 4, bias=False)

    def forward(self, x):
        linear = PrimitiveLinear.apply if WRONG else nn.functional.linear
        return linear(torch.relu(linear(x, self.first.weight)), self.second.weight)


def main():
    torch.manual_seed(0)
    features = torch.randn(256, 16)
    labels = (features @ torch.randn(16, 4)).argmax(1)
    loader = DataLoader(TensorDataset(features, labels), batch_size=32, shuffle=True)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(3):
        for inputs, targets in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(model(inputs).float(), targets)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
