"""Which dropout helps? One of each kind in a small vision transformer."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def drop_path(x, drop_prob: float = 0., training: bool = False):
    if drop_prob == 0. or not training:
        return x
    keep_prob = 1 - drop_prob
    shape = (x.shape[0],) + (1,) * (x.ndim - 1)
    random_tensor = keep_prob + torch.rand(shape, dtype=x.dtype, device=x.device)
    return x.div(keep_prob) * random_tensor.floor_()


class DropPath(nn.Module):
    def __init__(self, drop_prob=0.):
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x):
        return drop_path(x, self.drop_prob, self.training)


class Stem(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.conv1 = nn.Conv2d(1, dim, 3, padding=1)
        self.conv2 = nn.Conv2d(dim, dim, 3, padding=1)
        self.pool = nn.Conv2d(dim, dim, 2, stride=2)
        self.drop2d = nn.Dropout2d(0.1)

    def forward(self, x):
        x = F.gelu(self.conv1(x))
        branch = self.drop2d(F.gelu(self.conv2(x)))
        if self.training:
            keep = (torch.rand(x.shape[0], 1, 1, 1) > 0.2).to(x.dtype)
            branch = branch * keep / 0.8
        return self.pool(x + branch).flatten(2).transpose(1, 2)


class EncoderLayer(nn.Module):
    def __init__(self, dim, heads, p):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, dropout=p, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Dropout(p), nn.Linear(2 * dim, dim))
        self.drop_path = DropPath(0.15)

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.drop_path(self.attn(y, y, y, need_weights=False)[0])
        return x + self.drop_path(self.mlp(self.norm2(x)))


class ZooNet(nn.Module):
    def __init__(self, dim=12, classes=5):
        super().__init__()
        self.stem = Stem(dim)
        self.pos = nn.Parameter(torch.zeros(1, 16, dim))
        self.layers = nn.ModuleList(EncoderLayer(dim, 2, 0.1) for _ in range(2))
        self.head = nn.Sequential(nn.Linear(dim, 20), nn.SELU(), nn.AlphaDropout(0.05), nn.Linear(20, classes))

    def forward(self, x):
        x = F.dropout(self.stem(x) + self.pos, p=0.05, training=self.training)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(dim=1))


def main():
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(2)
    prototypes = torch.randn(5, 1, 8, 8)
    y = torch.randint(5, (303,))
    x = prototypes[y] + 0.8 * torch.randn(303, 1, 8, 8)
    train_loader = DataLoader(TensorDataset(x[:203], y[:203]), batch_size=26, shuffle=True)
    model = ZooNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.01)
    for epoch in range(7):
        model.train()
        total, hits = 0.0, 0
        for xb, yb in train_loader:
            optimizer.zero_grad()
            logits = model(xb)
            loss = F.cross_entropy(logits, yb)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(xb)
            hits += int((logits.argmax(1) == yb).sum())
        print(f"epoch {epoch}: train loss {total / 203:.10f}, train acc {hits / 203:.10f}")
        model.eval()
        with torch.no_grad():
            logits = model(x[203:])
        print(f"         test loss {F.cross_entropy(logits, y[203:]).item():.10f}, "
              f"test acc {(logits.argmax(1) == y[203:]).double().mean().item():.10f}")
    torch.save(model.state_dict(), "zoo.pt")


if __name__ == "__main__":
    main()
