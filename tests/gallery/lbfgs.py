import numpy as np
import torch
import torch.nn as nn

torch.set_default_dtype(torch.float64)


class Surrogate(nn.Module):
    """A smooth function of two variables."""

    def __init__(self, width=16):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, width), nn.Linear(width, width)])
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.out(x)


def peaks(x):
    return torch.sin(2 * x[:, :1]) * torch.cos(1.5 * x[:, 1:]) + 0.3 * x[:, :1] ** 2


def main():
    torch.manual_seed(11)
    x = 2 * torch.rand(203, 2) - 1
    y = peaks(x) + 0.05 * torch.randn(203, 1)
    x_test = 2 * torch.rand(61, 2) - 1
    y_test = peaks(x_test)

    model = Surrogate()
    mse = nn.MSELoss()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1, max_iter=8, history_size=10,
                                  line_search_fn="strong_wolfe")
    calls = 0

    def closure():
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        penalty = sum((p ** 2).sum() for p in model.parameters())
        loss = mse(model(x), y) + 1e-4 * penalty
        loss.backward()
        return loss

    history = []
    for step in range(8):
        before = optimizer.step(closure)
        with torch.no_grad():
            test_error = mse(model(x_test), y_test)
        history.append((before.item(), test_error.item()))
        print("step %d: objective %.10f, test error %.10f, %d evaluations so far"
              % (step, before.item(), test_error.item(), calls))

    np.savetxt("history.txt", np.array(history), fmt="%.10f")
    torch.save(model.state_dict(), "surrogate.pt")
    print("final objective %.10f" % closure().item())


if __name__ == "__main__":
    main()
