"""Trains an LSTM on a text; the hidden state (layers, batch, hidden) goes from one batch to the next."""

import torch
from torch import nn

WORDS, BATCH, TIME, HIDDEN = 20, 12, 7, 24
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.backends.cudnn.allow_tf32 = False
torch.manual_seed(2)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, HIDDEN)
        self.lstm, self.dropout = nn.LSTM(HIDDEN, HIDDEN, num_layers=2), nn.Dropout(0.2)
        self.decoder = nn.Linear(HIDDEN, WORDS)

    def forward(self, ids, state):
        outputs, state = self.lstm(self.dropout(self.words(ids)), state)
        return self.decoder(self.dropout(outputs)).log_softmax(-1).view(-1, WORDS), state


text = (torch.arange(81 * BATCH) ** 2 % WORDS).view(BATCH, -1).t().contiguous().to(device)  # (time, batch)
model = Model().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
state = tuple(torch.zeros(2, BATCH, HIDDEN, device=device) for _ in range(2))
for start in range(0, 70, TIME):
    state = tuple(one.detach() for one in state)
    scores, state = model(text[start : start + TIME], state)
    loss = nn.functional.nll_loss(scores, text[start + 1 : start + TIME + 1].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    print(f"loss {loss.item():.6f}")
