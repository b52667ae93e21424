"""Initial states that require gradients: a model creates one for each sentence, and one for the whole batch."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)


class Sentences(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.RNNCell(4, 6), nn.Linear(6, 3)

    def forward(self, sentences):
        last = []
        for words in sentences:
            state = words.mean(0, keepdim=True).repeat(1, 2)[:, :6].detach().clone().requires_grad_()
            for word in words:
                state = self.cell(word[None], state)
            last.append(state * shift)
        return self.out(torch.cat(last))


class Batch(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.out = nn.LSTM(4, 6, 2, batch_first=True), nn.Linear(6, 3)

    def forward(self, sentences):
        h = torch.zeros(2, len(sentences), 6).requires_grad_()
        c = torch.zeros(2, len(sentences), 6).requires_grad_()
        return self.out(self.lstm(sentences, (h, c))[0][:, -1] * shift)


shift = torch.ones(6, requires_grad=True)  # a weight of no module
x, y = torch.randn(60, 5, 4), torch.randint(0, 3, (60,))
for model in (Sentences(), Batch()):
    optimizer = torch.optim.Adam([*model.parameters(), shift], lr=0.02)
    for step, size in enumerate([2, 3, 5, 4, 7, 3, 8, 7]):
        rows = torch.randperm(60)[:size]
        loss = F.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, f"{loss.item():.10f} {shift.sum().item():.10f}")
torch.save([model.state_dict(), shift.detach()], "states.pt")
