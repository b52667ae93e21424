"""Language models with tied, tiny embeddings: all words are as likely at first, whatever is padded."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
torch.manual_seed(11)
vocab, width, pad = 12, 10, 0


class Tied(nn.Module):
    def __init__(self, std):
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.mix = nn.Linear(width, width)
        nn.init.normal_(self.embedding.weight, std=std)

    def forward(self, tokens):
        h = self.embedding(tokens[:, :-1])
        h = h + torch.tanh(self.mix(h.cumsum(1)))
        scores = h @ self.embedding.weight.T
        return F.cross_entropy(scores.reshape(-1, vocab), tokens[:, 1:].reshape(-1), ignore_index=pad)


class PerToken(Tied):
    """The mean over real tokens made by hand."""

    def forward(self, tokens):
        h = self.embedding(tokens[:, :-1])
        scores = F.linear(torch.tanh(self.mix(h)), self.embedding.weight)
        target = tokens[:, 1:]
        nll = -scores.log_softmax(-1).gather(2, target.unsqueeze(2)).squeeze(2)
        real = (target != pad).to(nll.dtype)
        return (nll * real).sum() / real.sum()


class Bits(Tied):
    """Sum over time, mean over sentences, in bits."""

    def forward(self, tokens):
        h = self.embedding(tokens[:, :-1])
        scores = F.linear(self.mix(h), self.embedding.weight)
        nll = F.cross_entropy(scores.transpose(1, 2), tokens[:, 1:], ignore_index=pad, reduction="none")
        return nll.sum(1).mean() / math.log(2)


class Scores(nn.Module):
    """Bigrams, the loss outside."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(vocab, vocab)

    def forward(self, tokens):
        return self.table(tokens)


def batch(n, steps):
    tokens = torch.zeros(n, 9, dtype=torch.long)
    for row in range(n):
        length = int(torch.randint(4, 10, (1,))) if steps else 9
        start = int(torch.randint(1, vocab, (1,)))
        tokens[row, :length] = 1 + (start + 2 * torch.arange(length)) % (vocab - 1)
    return tokens


bigrams = Scores()
optimizer = torch.optim.SGD(bigrams.parameters(), lr=1.0)
for step in range(5):
    tokens = batch(7, step)
    loss = F.cross_entropy(bigrams(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:], ignore_index=pad)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"  bigrams loss {loss.item():.10f}")

for name, model in {"tied": Tied(1e-7), "per token": PerToken(1e-8), "bits": Bits(1e-6)}.items():
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for step in range(20):
        loss = model(batch(7, step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 4 == 3 or step == 0:
            print(f"{name:>9} step {step:2d} loss {loss.item():.10f} perplexity {math.exp(loss.item()):.10f}")
    with torch.no_grad():
        print(f"{name:>9} held out {model(batch(17, 1)).item():.10f}")
torch.save(model.state_dict(), "tied.pt")
