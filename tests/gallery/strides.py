"""Outputs with another order of strides, on which `view` and `is_contiguous` depend."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
torch.manual_seed(23)


class Sequence(nn.Module):
    """Sequences come second and leave first: (B, T, F) gives (T, B, H)."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(3, 6)
        self.out = nn.Linear(6, 4)

    def forward(self, x):
        return self.out(self.rnn(x.transpose(0, 1))[0])


class Transposed(Sequence):
    """(B, T, H), laid out as (T, B, H)."""

    def forward(self, x):
        return super().forward(x).transpose(0, 1)


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 6, 3, padding=1)
        self.bn = nn.BatchNorm2d(6)

    def forward(self, x):
        return self.bn(self.conv(x)).relu()


class Expanded(nn.Module):
    """A score for all steps, without memory of its own."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 4)

    def forward(self, x):
        return self.fc(x[:, 0]).unsqueeze(1).expand(-1, x.size(1), -1)


def told(t):
    return f"{tuple(t.shape)} strides {t.stride()} contiguous {t.is_contiguous()}"


x = torch.randn(10, 5, 3)
y = (x.cumsum(1).argmax(-1) + 1) % 4
print("time first, viewed as rows")
for model in (Sequence(), Transposed()):
    opt = torch.optim.Adam(model.parameters(), lr=0.03)
    for step in range(4):
        out = model(x)
        try:
            rows = out.view(-1, 4)
        except RuntimeError:
            print("cannot be viewed")
            rows = out.reshape(-1, 4)
        target = y.t() if type(model) is Sequence else y
        loss = F.cross_entropy(rows, target.reshape(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(type(model).__name__, step, told(out), f"{loss.item():.10f}")
    if type(model) is Transposed:
        print(f"as time first {out.transpose(0, 1).view(-1, 4).sum().item():.10f}")

print("channels last")
images = torch.randn(10, 2, 4, 4)
for layout in (torch.contiguous_format, torch.channels_last):
    model = Images().to(memory_format=layout)
    head = nn.Linear(6, 4)
    opt = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.2)
    for step in range(4):
        h = model(images.to(memory_format=layout))
        if h.is_contiguous(memory_format=torch.channels_last) and not h.is_contiguous():
            rows = h.permute(0, 2, 3, 1).view(-1, 6)
        else:
            rows = h.view(10, 6, 16).transpose(1, 2).reshape(-1, 6)
        scores = head(rows).view(10, 16, 4).mean(1)
        loss = F.cross_entropy(scores, y[:, 0])
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, told(h), f"{loss.item():.10f} first numbers {h.as_strided((2,), (1,)).sum().item():.10f}")
    print(told(model.conv.weight), f"{model.bn.running_var.sum().item():.10f}")
    model.eval()
    with torch.inference_mode():
        print("evaluation", told(model(images.to(memory_format=layout))))

print("expanded, flattened")
model = Expanded()
opt = torch.optim.SGD(model.parameters(), lr=0.2)
for step in range(4):
    out = model(x)
    loss = F.cross_entropy(out.flatten(0, 1), y.flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, told(out), f"{loss.item():.10f}", out.untyped_storage().nbytes())
np.save("strides.npy", np.array(out.stride()))
