import copy
import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class EMA:
    def __init__(self, model, decay):
        self.decay = decay
        self.model = copy.deepcopy(model).requires_grad_(False).eval()

    @torch.no_grad()
    def update(self, model):
        for average, value in zip(self.model.parameters(), model.parameters()):
            average.lerp_(value, 1 - self.decay)


def denoising_loss(model, clean, noise, level):
    return (model(torch.cat([clean + level * noise, level], 1)) - noise).square().mean()


def main():
    resume = sys.argv[sys.argv.index("--resume") + 1] if "--resume" in sys.argv else None
    torch.manual_seed(12)
    g = torch.Generator().manual_seed(12)
    angle = 6.2832 * torch.rand(176, 1, generator=g)
    clean = torch.cat([angle.cos(), angle.sin()], 1)
    train, held_out = clean[:128], clean[128:]
    shuffle = torch.Generator()
    loader = DataLoader(TensorDataset(train), 16, shuffle=True, generator=shuffle)
    model = nn.Sequential(nn.Linear(3, 48), nn.SiLU(), nn.Linear(48, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    start = 0
    if resume:
        checkpoint = torch.load(resume)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        torch.set_rng_state(checkpoint["rng"])
        start = checkpoint["epoch"]
    ema = EMA(model, decay=0.97)

    for epoch in range(start, 5):
        shuffle.manual_seed(epoch)
        for (x,) in loader:
            loss = denoising_loss(model, x, torch.randn_like(x), torch.rand(len(x), 1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ema.update(model)
        with torch.no_grad():
            fixed = torch.Generator().manual_seed(99)
            noise = torch.randn(held_out.shape, generator=fixed)
            error = denoising_loss(ema.model, held_out, noise, torch.rand(len(noise), 1, generator=fixed))
        print(f"[{epoch}] train {loss.item():.6f} ema {error.item():.6f}")
        os.makedirs("models", exist_ok=True)
        torch.save({
            "model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state(),
            "epoch": epoch + 1}, "models/last.pt")
        torch.save(ema.model.state_dict(), "models/ema.pt")


if __name__ == "__main__":
    main()
