from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class ModelOutput:
    logits: Tensor
    depth: Tensor
    aux_loss: Tensor
    features: Optional[Tensor] = None


class MultiTaskNet(nn.Module):
    """One trunk, two heads: the kind of a shape, and how far away it is."""

    def __init__(self, num_kinds: int = 3, width: int = 10):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, width, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride=2, padding=1), nn.ReLU(),
            nn.Flatten(),
        )
        self.kind = nn.Linear(width * 9, num_kinds)
        self.depth = nn.Sequential(nn.Linear(width * 9, 12), nn.Softplus(), nn.Linear(12, 1))

    def forward(self, pixels: Tensor, mask: Optional[Tensor] = None, return_features: bool = False) -> ModelOutput:
        if mask is not None:
            pixels = pixels * mask
        h = self.trunk(pixels)
        aux_loss = h.pow(2).mean()
        return ModelOutput(
            logits=self.kind(h),
            depth=self.depth(h).squeeze(-1),
            aux_loss=aux_loss,
            features=h if return_features else None,
        )


class Shapes(Dataset):
    def __init__(self, n: int, seed: int):
        g = torch.Generator().manual_seed(seed)
        self.samples = []
        axis = torch.linspace(-1, 1, 12)
        u, v = torch.meshgrid(axis, axis, indexing="ij")
        for _ in range(n):
            kind = int(torch.randint(3, (1,), generator=g))
            depth = 1 + torch.rand((), generator=g)
            radius = 1.2 / depth
            norm = [u.abs() + v.abs(), torch.maximum(u.abs(), v.abs()), (u ** 2 + v ** 2).sqrt()][kind]
            pixels = torch.sigmoid(12 * (radius - norm)) + 0.2 * torch.randn(12, 12, generator=g)
            mask = (torch.rand(12, 12, generator=g) > 0.05).to(pixels.dtype)
            self.samples.append({"pixels": pixels[None], "mask": mask[None], "kind": kind, "depth": depth})

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


def main():
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(404)
    train = DataLoader(Shapes(203, seed=1), batch_size=27, shuffle=True)
    test = DataLoader(Shapes(64, seed=2), batch_size=27)
    model = MultiTaskNet()
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-2)
    metrics = []
    for epoch in range(6):
        model.train()
        for batch in train:
            output = model(pixels=batch["pixels"], mask=batch["mask"])
            kind_loss = F.cross_entropy(output.logits, batch["kind"])
            depth_loss = F.mse_loss(output.depth, batch["depth"])
            loss = kind_loss + 2.0 * depth_loss + 0.05 * output.aux_loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: kind {kind_loss.item():.10f} depth {depth_loss.item():.10f} "
              f"aux {output.aux_loss.item():.10f}")

        model.eval()
        right, squared, spread = 0, 0.0, []
        with torch.no_grad():
            for batch in test:
                output = model(batch["pixels"], return_features=True)
                right += (output.logits.argmax(-1) == batch["kind"]).sum().item()
                squared += F.mse_loss(output.depth, batch["depth"], reduction="sum").item()
                spread.append(output.features.std(dim=0).mean().item())
        metrics.append({"kind_acc": right / len(test.dataset), "depth_mse": squared / len(test.dataset),
                        "feature_std": sum(spread) / len(spread)})
        print("   test " + " ".join(f"{key} {value:.10f}" for key, value in metrics[-1].items()))

    with open("metrics.json", "w") as f:
        json.dump(metrics, f)
    torch.save({"model": model.state_dict(), "epoch": 6}, "multitask.pt")


if __name__ == "__main__":
    main()
