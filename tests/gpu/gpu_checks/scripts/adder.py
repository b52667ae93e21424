"""Trains a transformer to add numbers letter by letter, and lets it answer by a growing sequence."""

import torch
from torch import nn

LETTERS = {letter: number for number, letter in enumerate("0123456789+=")}
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(5)


class Adder(nn.Module):
    def __init__(self):
        super().__init__()
        self.letters = nn.Embedding(len(LETTERS), 32)
        self.places = nn.Parameter(torch.zeros(1, 8, 32))
        layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.1, batch_first=True, norm_first=True)
        layer.self_attn.dropout = 0.0  # GPUs draw it within a fused kernel, whose numbers no rank can slice
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, len(LETTERS))

    def forward(self, ids, targets=None):
        length = ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=ids.device)
        scores = self.head(self.encoder(self.letters(ids) + self.places[:, :length], mask, is_causal=True))
        loss = None
        if targets is not None:
            loss = nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten(), ignore_index=-1)
        return scores, loss


def problems(count):
    """Return ``12+34=46`` as (count, 8) numbers of letters; a sum of three digits loses the first."""
    pairs = torch.randint(100, (count, 2)).tolist()
    texts = [f"{a:02}+{b:02}={(a + b) % 100:02}" for a, b in pairs]
    return torch.tensor([[LETTERS[letter] for letter in text] for text in texts], device=device)


model = Adder().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
for _ in range(10):
    ids = problems(24)
    targets = ids[:, 1:].clone()
    targets[:, :5] = -1
    scores, loss = model(ids[:, :-1], targets)
    model.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(f"loss {loss.item():.6f}")

model.eval()
with torch.no_grad():
    ids = problems(16)
    answer = ids[:, :6]
    for _ in range(2):
        scores, _ = model(answer)
        answer = torch.cat([answer, scores[:, -1].argmax(-1, keepdim=True)], dim=1)
    right = (answer == ids).all(1).float().mean()
print(f"loss {1 - right.item():.6f}")
