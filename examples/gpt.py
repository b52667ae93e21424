"""Trains a small GPT on three sonnets, letter by letter; a plain PyTorch script for one device.

Run it with ``python examples/gpt.py``, or on two workers with ``samestep run -n 2 examples/gpt.py``.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

CONTEXT, WIDTH, LAYERS, HEADS = 48, 64, 2, 4
STEPS, BATCH_SIZE = 40, 32


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, _ = x.shape
        parts = self.project(self.norm1(x)).view(batch, time, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, time, WIDTH))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, letters: int) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(letters, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, letters)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        places = torch.arange(letters.shape[1], device=letters.device)
        return self.head(self.blocks(self.letter(letters) + self.place(places)))


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    text = (Path(__file__).parent / "sonnets.txt").read_text()
    letters = sorted(set(text))
    data = torch.tensor([letters.index(one) for one in text], device=device)
    model = GPT(len(letters)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    for step in range(STEPS):
        starts = torch.randint(len(data) - CONTEXT - 1, (BATCH_SIZE,)).tolist()
        inputs = torch.stack([data[at : at + CONTEXT] for at in starts])
        targets = torch.stack([data[at + 1 : at + CONTEXT + 1] for at in starts])
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 10 == 9:
            print(f"step {step + 1}: loss {loss.item():.4f}")

    torch.save(model.state_dict(), "gpt.pt")


if __name__ == "__main__":
    main()
