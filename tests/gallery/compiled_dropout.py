"""torch.compile around dropout, noise and stochastic depth."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
torch.manual_seed(17)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 16), nn.Linear(16, 3)
        self.drop = nn.Dropout(0.3)

    def forward(self, x):
        return self.fc2(self.drop(F.gelu(self.fc1(x))))


class Noisy(Net):
    """Noise on the inputs, and whole rows dropped."""

    def forward(self, x):
        if self.training:
            x = x + 0.1 * torch.randn_like(x)
        h = self.fc1(x).tanh()
        if self.training:
            h = h * torch.empty(h.size(0), 1).bernoulli_(0.8) / 0.8
        return self.fc2(h)


class Functional(Net):
    def forward(self, x):
        h = F.dropout(self.fc1(x).relu(), p=0.2, training=self.training)
        return self.fc2(F.alpha_dropout(h, p=0.1, training=self.training))


x = torch.randn(40, 4)
y = x[:, :3].argmax(1)
for backend in ("eager", "aot_eager"):
    for cls in (Net, Noisy, Functional):
        torch.compiler.reset()
        net = cls()
        model = torch.compile(net, backend=backend)
        opt = torch.optim.AdamW(net.parameters(), lr=0.01)
        for epoch in range(2):
            model.train()
            total = 0.0
            for rows in torch.randperm(40).split(12):
                loss = F.cross_entropy(model(x[rows]), y[rows])
                opt.zero_grad()
                loss.backward()
                opt.step()
                total += loss.item()
            model.eval()
            with torch.no_grad():
                right = (model(x).argmax(1) == y).sum().item()
            print(f"{backend} {cls.__name__} {epoch}: {total / 4:.10f} {right} right {torch.rand(()).item():.10f}")


class Attention(nn.Module):
    """Compiled in part; dropout is in the attention, and later raised in the part that is not compiled."""

    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(4, 18), nn.Linear(6, 3)
        self.block = torch.compile(Net(), backend="aot_eager", dynamic=False)
        self.drop = nn.Dropout(0.0)

    def forward(self, x):
        q, k, v = self.inp(x).view(len(x), 3, 2, 3).unbind(1)
        h = F.scaled_dot_product_attention(q, k, v, dropout_p=0.2 if self.training else 0.0)
        return self.out(self.drop(h.reshape(len(x), 6))) + self.block(x)


def own_compile():
    net = Net()
    net.compile(backend="eager")
    return net


def own_forward():
    net = Noisy()
    net.forward = torch.compile(net.forward, backend="eager")
    return net


criterion = torch.compile(lambda a, b: F.cross_entropy(a, b, label_smoothing=0.1), backend="eager")
for make in (Attention, own_compile, own_forward):
    torch.compiler.reset()
    net = make()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    net.eval()
    with torch.no_grad():
        print(f"{make.__name__} before: {criterion(net(x), y).item():.10f}")
    net.train()
    for step, rows in enumerate(torch.randperm(40).split(11) * 2):
        net.drop.p = 0.2 * (step > 2)
        loss = criterion(net(x[rows]), y[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"{make.__name__} {step}: {loss.item():.10f}")
