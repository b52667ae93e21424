"""A physics-informed network: derivatives by coordinates that the script concatenates, Adam and then LBFGS."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)


def derivative(of, by):
    return torch.autograd.grad(of, by, torch.ones_like(of), create_graph=True, retain_graph=True)[0]


class Burgers:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
        self.speed, self.viscosity = nn.Parameter(torch.tensor([0.5])), nn.Parameter(torch.tensor([-3.0]))
        self.x, self.t = torch.rand(40, 1, requires_grad=True), torch.rand(40, 1, requires_grad=True)
        self.target = torch.sin(3 * self.x.detach()) * torch.exp(-self.t.detach())
        self.border = torch.rand(11, 1)
        weights = [*self.net.parameters(), self.speed, self.viscosity]
        self.adam = torch.optim.Adam(weights, lr=1e-2)
        self.lbfgs = torch.optim.LBFGS(weights, max_iter=8, max_eval=10, line_search_fn="strong_wolfe")
        self.calls = 0

    def u(self, x, t):
        return self.net(torch.cat([x, t], 1))

    def residual(self):
        u = self.u(self.x, self.t)
        u_t, u_x = derivative(u, self.t), derivative(u, self.x)
        return u_t + self.speed * u * u_x - self.viscosity.exp() * derivative(u_x, self.x)

    def closure(self):
        self.adam.zero_grad()
        fit = (self.u(self.x, self.t) - self.target).pow(2).mean()
        start = (self.u(self.border, torch.zeros_like(self.border)) - torch.sin(3 * self.border)).pow(2).mean()
        loss = fit + start + self.residual().pow(2).mean()
        loss.backward()
        self.calls += 1
        if self.calls % 4 == 0:
            print(self.calls, f"{loss.item():.10f} {self.speed.item():.10f} {self.viscosity.item():.10f}")
        return loss


model = Burgers()
for _ in range(8):
    model.adam.step(model.closure)
model.lbfgs.step(model.closure)

# the derivative of what is computed from the output and the input: u = x n(x) is 0 at the border
net, x = nn.Sequential(nn.Linear(1, 12), nn.Tanh(), nn.Linear(12, 1)), torch.linspace(0, 1, 25).view(-1, 1)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for step in range(5):
    points = (x + 0.01 * torch.rand_like(x)).requires_grad_(True)
    u = points * net(2 * points - 1)
    loss = (derivative(u, points) - torch.cos(points)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, f"{loss.item():.10f}")
torch.save(net.state_dict(), "net.pt")
