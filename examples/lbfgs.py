"""Fits a small network to a function of two variables with LBFGS and a line search; a script for one device.

Run it with ``python examples/lbfgs.py``, or on two workers with ``samestep run -n 2 examples/lbfgs.py``.
"""

import torch
import torch.nn.functional as F
from torch import nn

STEPS = 6


def main() -> None:
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    x = 2 * torch.rand(400, 2) - 1
    y = torch.sin(2 * x[:, :1]) * torch.cos(1.5 * x[:, 1:])
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=10, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    for step in range(STEPS):
        print(f"step {step + 1}: mean squared error {optimizer.step(closure).item():.8f}")


if __name__ == "__main__":
    main()
