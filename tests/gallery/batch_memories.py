"""Models that store data of earlier batches: a queue of keys, a codebook of moving averages, centers; or mix samples."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
torch.manual_seed(61)


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.body(x).tanh())


class Queue(Plain):
    """Compared with the keys of the last batches (MoCo)."""

    def __init__(self):
        super().__init__()
        self.register_buffer("queue", F.normalize(torch.randn(6, 24), dim=0))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))

    def forward(self, x):
        h = F.normalize(self.body(x), dim=1)
        similar = h @ self.queue.clone()
        if self.training:
            start = int(self.place)
            self.queue[:, start : start + len(x)] = h.detach().T[:, : 24 - start]
            self.place[0] = (start + len(x)) % 24
        return self.head(h) + similar.mean(1, keepdim=True)


class Codebook(Plain):
    """VQ-VAE: codes are moving averages of their nearest features."""

    def __init__(self):
        super().__init__()
        self.register_buffer("codes", torch.randn(4, 6))

    def forward(self, x):
        h = self.body(x)
        nearest = F.one_hot(torch.cdist(h, self.codes).argmin(1), 4).double()
        if self.training:
            with torch.no_grad():
                count = nearest.sum(0).unsqueeze(1)
                mean = nearest.T @ h / count.clamp(min=1)
                self.codes = torch.where(count > 0, 0.9 * self.codes + 0.1 * mean, self.codes)
        q = nearest @ self.codes
        return self.head(h + (q - h).detach())


class Mixed(Plain):
    """Manifold mixup by a permutation drawn in forward, from the second epoch on."""

    def __init__(self):
        super().__init__()
        self.alpha = 0.0

    def forward(self, x):
        h = self.body(x).tanh()
        if self.training and self.alpha:
            h = (1 - self.alpha) * h + self.alpha * h[torch.randperm(len(h))]
        return self.head(h)


class Chosen(Plain):
    """Features are sampled by their activations; noise from a distribution."""

    def forward(self, x):
        h = self.body(x).sigmoid()
        if self.training:
            h = h + torch.distributions.Normal(0.0, 0.1 * torch.ones_like(h)).sample()
            h = h * F.gumbel_softmax(h, tau=0.7)
            kept = torch.multinomial(h.abs() + 0.1, 3)
            h = h * torch.zeros_like(h).scatter(1, kept, 1.0)
        return self.head(h)


class Hardest(Plain):
    """The loss is computed from the half of the batch with the largest losses."""

    def forward(self, x, y):
        each = F.cross_entropy(super().forward(x), y, reduction="none")
        return each.topk(max(1, len(each) // 2)).values.mean()


x = torch.randn(40, 5)
y = x[:, :3].argmax(1)
for model in (Plain(), Queue(), Codebook(), Mixed(), Chosen(), Hardest()):
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        model.train()
        model.alpha = 0.3 * (epoch > 0)
        for rows in torch.randperm(40).split(8):
            loss = model(x[rows], y[rows]) if isinstance(model, Hardest) else F.cross_entropy(model(x[rows]), y[rows])
            opt.zero_grad()
            loss.backward()
            opt.step()
        state = sum(b.double().sum().item() for b in model.buffers())
        print(f"{type(model).__name__} epoch {epoch}: {loss.item():.10f} memory {state:.10f}")
