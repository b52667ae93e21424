"""Losses computed in forward, whose first batch has no padding, no ignored label and masks of ones."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
torch.manual_seed(77)
WORDS, WIDTH, IGNORE = 9, 8, -100


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.fc = nn.Linear(WIDTH, WORDS)

    def scores(self, tokens):
        return self.fc(torch.tanh(self.embed(tokens)))


class Scores(Base):
    """The loss is computed outside."""

    def forward(self, tokens):
        return self.scores(tokens)


class Ignoring(Base):
    def forward(self, tokens, labels):
        return F.cross_entropy(self.scores(tokens).transpose(1, 2), labels, ignore_index=IGNORE)


class Masked(Base):
    def forward(self, tokens, labels):
        mask = (labels != IGNORE).double()
        l = F.cross_entropy(self.scores(tokens).transpose(1, 2), labels.clamp(min=0), reduction="none")
        return (l * mask).sum() * (1.0 / mask.sum())


class Selected(Base):
    def forward(self, tokens, labels):
        scores = self.scores(tokens)
        l = F.cross_entropy(scores.flatten(0, 1), labels.clamp(min=0).flatten(), reduction="none")
        return l[labels.flatten() != IGNORE].mean()


class MaskedSelect(Base):
    def forward(self, tokens, labels):
        log = self.scores(tokens).log_softmax(-1)
        picked = log.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        return -picked.masked_select(labels.ne(IGNORE)).mean()


class Clamped(Base):
    """Divided by the real tokens of the batch, but by one at least."""

    def forward(self, tokens, labels):
        real = labels != IGNORE
        log = self.scores(tokens).log_softmax(-1)
        picked = log.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        return -(picked * real).sum().div(real.sum().clamp(min=1))


def batch(step, n=9):
    tokens = torch.randint(0, WORDS, (n, 6))
    labels = (tokens + tokens.roll(1, 1)) % WORDS
    if step:
        lengths = torch.randint(1, 7, (n,))
        labels[torch.arange(6) >= lengths[:, None]] = IGNORE
    return tokens, labels


model = Scores()
opt = torch.optim.Adam(model.parameters(), lr=0.03)
for step in range(4):
    tokens, labels = batch(step)
    loss = F.cross_entropy(model(tokens).transpose(1, 2), labels, ignore_index=IGNORE)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"Scores: step {step} {loss.item():.10f}")

for model in (Ignoring(), Masked(), Selected(), MaskedSelect(), Clamped()):
    name = type(model).__name__
    with torch.no_grad():
        print(f"{name}: before training {model(*batch(0)).item():.10f} {model(*batch(1)).item():.10f}")
    opt = torch.optim.Adam(model.parameters(), lr=0.03)
    for step in range(12):
        loss = model(*batch(step, 9 if step < 11 else 5))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 3 == 0 or step == 11:
            print(f"{name}: step {step} {loss.item():.10f}")
    model.eval()
    with torch.no_grad():
        losses = [model(*batch(step)).item() for step in (0, 1, 2, 3)]
    print(f"{name}: evaluation " + " ".join(f"{one:.10f}" for one in losses))
