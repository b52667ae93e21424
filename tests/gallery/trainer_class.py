import json
import logging
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Dict, List

import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset, random_split

logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(name)s | %(message)s")
logger = logging.getLogger("trainer")


@dataclass
class Config:
    epochs: int = 6
    batch_size: int = 25
    lr: float = 3e-3
    weight_decay: float = 0.05
    max_norm: float = 1.0
    seed: int = 42


class ResidualBlock(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.ff(self.norm(x))


class Regressor(nn.Module):
    def __init__(self, features: int, dim: int = 24, depth: int = 2) -> None:
        super().__init__()
        self.stem = nn.Linear(features, dim)
        self.blocks = nn.Sequential(*[ResidualBlock(dim) for _ in range(depth)])
        self.head = nn.Linear(dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x))).squeeze(-1)


class Trainer:
    def __init__(self, model: nn.Module, train_data, val_data, cfg: Config) -> None:
        self.model, self.cfg = model, cfg
        self.train_loader = DataLoader(train_data, batch_size=cfg.batch_size, shuffle=True)
        self.val_loader = DataLoader(val_data, batch_size=cfg.batch_size)
        self.optimizer = AdamW(model.parameters(), lr=cfg.lr, weight_decay=cfg.weight_decay)
        self.scheduler = CosineAnnealingLR(self.optimizer, T_max=cfg.epochs)
        self.criterion = nn.SmoothL1Loss()
        self.history: List[Dict[str, float]] = []
        self.out_dir = Path("output")
        self.out_dir.mkdir(exist_ok=True)

    def fit(self) -> None:
        best = float("inf")
        for epoch in range(self.cfg.epochs):
            train_loss = self._train_epoch()
            metrics = self.evaluate()
            lr = self.scheduler.get_last_lr()[0]
            self.scheduler.step()
            self.history.append({"epoch": epoch, "train_loss": train_loss, "lr": lr, **metrics})
            logger.info(f"epoch {epoch}: train {train_loss:.10f} val {metrics['loss']:.10f} "
                        f"mae {metrics['mae']:.10f} lr {lr:.10f}")
            if metrics["loss"] < best:
                best = metrics["loss"]
                self.save_checkpoint("best.pt", epoch)
        self.save_checkpoint("last.pt", self.cfg.epochs - 1)
        (self.out_dir / "history.json").write_text(json.dumps({"config": asdict(self.cfg), "history": self.history}, indent=2))

    def _train_epoch(self) -> float:
        self.model.train()
        total = 0.0
        for x, y in self.train_loader:
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.criterion(self.model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.max_norm)
            self.optimizer.step()
            total += loss.item()
        return total / len(self.train_loader)

    @torch.no_grad()
    def evaluate(self) -> Dict[str, float]:
        self.model.eval()
        pairs = [(self.model(x), y) for x, y in self.val_loader]
        pred, true = (torch.cat(part) for part in zip(*pairs))
        return {"loss": self.criterion(pred, true).item(), "mae": (pred - true).abs().mean().item()}

    def save_checkpoint(self, name: str, epoch: int) -> None:
        torch.save({"epoch": epoch, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
                    "scheduler": self.scheduler.state_dict()}, self.out_dir / name)


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    config = Config()
    torch.manual_seed(config.seed)
    inputs = torch.rand(353, 7) * 2 - 1
    targets = torch.sin(3 * inputs[:, 0]) + inputs[:, 1] * inputs[:, 2] + 0.1 * torch.randn(353)
    train_set, val_set = random_split(TensorDataset(inputs, targets), [280, 73])
    Trainer(Regressor(features=7), train_set, val_set, config).fit()
