"""Trains a LightningModule with batch norm, dropout and a schedule."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):
    """Fits a sine."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(4, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1)
        )

    def training_step(self, batch, _):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        print(f"loss {loss.item():.6f}")
        return loss

    def validation_step(self, batch, _):
        x, y = batch
        print(f"loss {nn.functional.mse_loss(self.net(x), y).item():.6f}")

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


lightning.seed_everything(8, verbose=False)
x = torch.randn(120, 4)
data = TensorDataset(x, torch.sin(x.sum(1, keepdim=True)))
quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = lightning.Trainer(
    max_epochs=2, devices=1, enable_checkpointing=False, num_sanity_val_steps=0, **quiet
)
trainer.fit(Regression(), DataLoader(data, batch_size=24, shuffle=True), DataLoader(data, batch_size=40))
