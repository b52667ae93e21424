"""A neural ODE: an integrator calls a small network many times in each step, and the loss is over the path."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 2))
        for layer in self.net[::2]:
            nn.init.normal_(layer.weight, std=0.1)
            nn.init.zeros_(layer.bias)

    def forward(self, t, y):
        return self.net(y**3)


def integrated(derivative, y, times):
    path = [y]
    for now, then in zip(times[:-1], times[1:], strict=True):
        step = then - now
        one = derivative(now, y)
        two = derivative(now + step / 2, y + step / 2 * one)
        three = derivative(now + step / 2, y + step / 2 * two)
        four = derivative(then, y + step * three)
        y = y + step / 6 * (one + 2 * two + 2 * three + four)
        path.append(y)
    return torch.stack(path)


MATRIX = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]])


def true_derivative(_, y):
    return y**3 @ MATRIX


field = Field()
optimizer = torch.optim.RMSprop(field.parameters(), lr=1e-3)
times = torch.linspace(0, 0.8, 9)

for iteration in range(1, 13):
    start = torch.rand(20, 2) * 2 - 1
    with torch.no_grad():
        expected = integrated(true_derivative, start, times)
    optimizer.zero_grad()
    loss = (integrated(field, start, times) - expected).abs().mean()
    loss.backward()
    optimizer.step()
    if iteration % 4 == 0:
        with torch.no_grad():
            test = (integrated(field, start[:7], times) - expected[:, :7]).abs().mean()
        print(f"iteration {iteration:04d} loss {loss.item():.6f} test {test.item():.6f}")
torch.save(field.state_dict(), "field.pt")
