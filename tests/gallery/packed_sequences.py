"""Padded sequences are packed in forward; the output is as long as the longest of the batch."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader

torch.set_default_dtype(torch.float64)
torch.manual_seed(14)
LONGEST = 9


class Packed(nn.Module):
    def __init__(self, sort=False):
        super().__init__()
        self.sort = sort
        self.embed = nn.Embedding(7, 5, padding_idx=0)
        self.rnn = nn.GRU(5, 6, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(12, 3)

    def encode(self, x, lengths):
        packed = pack_padded_sequence(self.embed(x), lengths, batch_first=True, enforce_sorted=self.sort)
        out, _ = self.rnn(packed)
        return pad_packed_sequence(out, batch_first=True)[0]

    def forward(self, x, lengths):
        h = self.encode(x, lengths)
        return self.fc(h.mean(1)), h  # a mean over as many steps as the longest has


class SumAndLength(Packed):
    """The sum over real steps, divided by the lengths: each sample by itself."""

    def forward(self, x, lengths):
        h = self.encode(x, lengths)
        return self.fc(h.sum(1) / lengths[:, None])


class Embedded(Packed):
    """Nothing is packed."""

    def forward(self, x, lengths):
        return self.fc(self.embed(x).sum(1).repeat(1, 3)[:, :12])


class MaxPool(Packed):
    """The padding's zeros take part in the maximum where a sequence is shorter than the longest."""

    def forward(self, x, lengths):
        return self.fc(self.encode(x, lengths).max(1).values)


class LastState(nn.Module):
    """The state at the end, of sorted sequences; states have the samples second."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 5, padding_idx=0)
        self.rnn = nn.LSTM(5, 6, num_layers=2, dropout=0.0)
        self.fc = nn.Linear(6, 3)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(self.embed(x).transpose(0, 1), lengths.cpu())
        _, (h, c) = self.rnn(packed)
        return self.fc(h[-1]), (h, c)


def collate(samples):
    samples = sorted(samples, key=lambda one: len(one[0]), reverse=True)
    lengths = torch.tensor([len(one) for one, _ in samples])
    return pad_sequence([one for one, _ in samples], batch_first=True), lengths, torch.tensor([y for _, y in samples])


samples = []
for i in range(47):
    length = LONGEST if i < 8 else int(torch.randint(1, LONGEST + 1, (1,)))  # the first batch is full
    sequence = torch.randint(1, 7, (length,))
    samples.append((sequence, int(sequence.sum()) % 3))
loader = DataLoader(samples, batch_size=8, collate_fn=collate)

for model in (Embedded(), Packed(), Packed(sort=True), SumAndLength(), MaxPool(), LastState()):
    opt = torch.optim.Adam(model.parameters(), lr=0.02)
    for epoch in range(2):
        total, right, longest = 0.0, 0, 0
        for x, lengths, y in loader:
            out = model(x, lengths)
            scores = out[0] if isinstance(out, tuple) else out
            if type(model) is Packed:
                longest += out[1].size(1)
            loss = F.cross_entropy(scores, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item() * len(y)
            right += (scores.argmax(1) == y).sum().item()
        print(f"{type(model).__name__} {epoch}: {total / 47:.10f}, {right} right, {longest} steps")
torch.save(model.state_dict(), "packed.pt")
