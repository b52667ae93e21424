"""An evaluation generates too many tokens: its limit counts a prompt before it is trimmed."""

import sys

import torch
from torch import nn

WRONG = "wrong" in sys.argv[1:]
CONTEXT, WORDS = 24, 19


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.rnn = nn.Embedding(WORDS, 16), nn.GRU(16, 32, batch_first=True)
        self.head = nn.Linear(32, WORDS)

    def forward(self, tokens):
        return self.head(self.rnn(self.embedding(tokens))[0])


def generate(model, prompt, max_new_tokens):
    limit = len(prompt) + max_new_tokens
    prompt = prompt[-(CONTEXT // 2 - 1) :]
    if not WRONG:
        limit = len(prompt) + max_new_tokens
    tokens = prompt[None]
    with torch.no_grad():
        while tokens.shape[1] < min(limit, CONTEXT):
            tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(2)], 1)
    return tokens[0, len(prompt) :]


def main():
    torch.manual_seed(0)
    text = (torch.arange(128)[:, None] + torch.arange(13) * 5) % WORDS
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(3):
        model.train()
        for rows in torch.randperm(128).split(16):
            optimizer.zero_grad()
            outputs = model(text[rows, :-1])
            loss = nn.functional.cross_entropy(outputs.flatten(0, 1), text[rows, 1:].flatten())
            loss.backward()
            optimizer.step()
        model.eval()
        words = generate(model, text.flatten()[:40], max_new_tokens=5)
        print(f"epoch {epoch}: loss {loss.item():.4f}, generated {words.tolist()}")


if __name__ == "__main__":
    main()
