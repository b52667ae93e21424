"""Labels and masks that look up rows, too: their first batches are full, and later one half has no label. Speech with its CTC loss."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
torch.manual_seed(23)


def per_label(values, counts):
    """The mean over what counts, or zero: no weight of a slice gives the mean of the batch."""
    return (values * counts).sum() / counts.sum().clamp(min=1)


class Gathered(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 3)

    def forward(self, x, labels):
        log = F.log_softmax(self.out(x), -1)
        return per_label(-log.gather(1, labels.clamp(min=0)[:, None])[:, 0], labels >= 0)


class Positioned(nn.Module):
    """Positions are counted in the mask, as in RoBERTa."""

    def __init__(self):
        super().__init__()
        self.words, self.places, self.out = nn.Embedding(20, 4), nn.Embedding(7, 4), nn.Linear(4, 1)

    def forward(self, tokens, mask):
        h = torch.tanh(self.words(tokens) + self.places(mask.cumsum(1) * mask))
        return per_label(self.out(h).squeeze(2).square(), mask)


class Shifted(nn.Module):
    """The labels are the inputs of the decoder, too, as in T5."""

    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(20, 4), nn.Linear(4, 20)

    def forward(self, x, labels):
        before = F.pad(labels, (1, -1)).masked_fill(F.pad(labels, (1, -1)) == -100, 0)
        scores = self.out(torch.tanh(self.words(before) + x))
        each = F.cross_entropy(scores.transpose(1, 2), labels, reduction="none")
        return per_label(each, labels != -100)


class Routed(nn.Module):
    """The mask reaches the choice of an expert."""

    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(4, 2), nn.Parameter(torch.randn(2, 4))

    def forward(self, x, mask):
        h = x * mask[..., None]
        return per_label((h * self.experts[self.router(h).argmax(-1)]).sum(-1).square(), mask)


class Spoken(nn.Module):
    """Sequences of letters, padded with -1."""

    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 6)

    def forward(self, sounds, letters, lengths):
        log = F.log_softmax(self.out(self.rnn(sounds)[0]), -1).transpose(0, 1)
        frames = torch.full((len(sounds),), sounds.shape[1])
        return F.ctc_loss(log, letters, frames, lengths, reduction="sum") / 20


models = [Gathered(), Positioned(), Shifted(), Routed(), Spoken()]
optimizer = torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.1)
for step in range(6):
    missing = slice(0, 4 if step > 2 else 0)
    labels, targets = torch.randint(0, 3, (8,)), torch.randint(0, 20, (8, 5))
    mask = torch.ones(8, 6, dtype=torch.long)
    labels[missing], targets[missing], mask[missing] = -100, -100, 0
    lengths = torch.randint(1, 5, (8,))
    letters = torch.randint(1, 6, (8, 4)).masked_fill(torch.arange(4) >= lengths[:, None], -1)
    losses = [
        models[0](torch.randn(8, 4), labels),
        models[1](torch.randint(0, 20, (8, 6)), mask),
        models[2](torch.randn(8, 5, 4), targets),
        models[3](torch.randn(8, 6, 4), mask),
        models[4](torch.randn(8, 12, 4), letters, lengths),
    ]
    optimizer.zero_grad()
    sum(losses).backward()
    optimizer.step()
    print(step, " ".join(f"{loss.item():.10f}" for loss in losses))
