"""Forward crops its input to the longest sequence of the batch, or normalizes by its length."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
torch.manual_seed(19)


class Cropped(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.RNN(3, 6, batch_first=True)
        self.fc = nn.Linear(6, 2)

    def forward(self, x, lengths):
        x = x[:, : lengths.max()]
        return self.fc(self.rnn(x)[0][:, -1])


class Whole(Cropped):
    """Reads each sequence to its own end."""

    def forward(self, x, lengths):
        return self.fc(self.rnn(x)[0][torch.arange(len(x)), lengths - 1])


class Masked(Cropped):
    """The mask is as wide as the longest; each sample's mean is its own."""

    def forward(self, x, lengths):
        x = x[:, : int(lengths.max())]
        mask = (torch.arange(x.size(1)) < lengths[:, None]).double()
        h = self.rnn(x)[0] * mask.unsqueeze(2)
        return self.fc(h.sum(1) / mask.sum(1, keepdim=True))


class Relative(Cropped):
    """A position is a fraction of the longest length."""

    def forward(self, x, lengths):
        place = torch.arange(x.size(1)) / lengths.max()
        x = x + place[None, :, None] * (torch.arange(x.size(1)) < lengths[:, None]).unsqueeze(2)
        return self.fc(self.rnn(x)[0][torch.arange(len(x)), lengths - 1])


class Attended(Cropped):
    """Steps beyond the longest are dropped, and the convolution is padded there."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(3, 6, 3, padding=1)

    def forward(self, x, lengths):
        h = self.conv(x[:, : lengths.max()].transpose(1, 2)).tanh()
        return self.fc(h.mean(-1))


def batch(step, n=10):
    x = torch.randn(n, 8, 3)
    lengths = torch.full((n,), 8) if step == 0 else torch.randint(2, 9, (n,))
    x[torch.arange(8) >= lengths[:, None]] = 0
    return x, lengths, (x.sum((1, 2)) > 0).long()


for model in (Whole(), Cropped(), Masked(), Relative(), Attended()):
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(14):
        x, lengths, y = batch(step)
        loss = F.cross_entropy(model(x, lengths), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    print(type(model).__name__, " ".join(f"{one:.10f}" for one in losses[::4]))
    with torch.no_grad():
        x, lengths, y = batch(1, 21)
        print(type(model).__name__, f"held out {F.cross_entropy(model(x, lengths), y).item():.10f}")
