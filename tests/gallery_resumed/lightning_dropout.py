"""Trains a LightningModule, and goes on from the last checkpoint if there is one."""

import os

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset


class EpochSampler(Sampler):
    """An order for each epoch; Lightning calls set_epoch."""

    def __init__(self, size):
        self.size, self.epoch = size, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.size

    def __iter__(self):
        return iter(torch.randperm(self.size, generator=torch.Generator().manual_seed(self.epoch)).tolist())


class Regression(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Dropout(0.25), nn.Linear(32, 1))
        self.losses = []

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.losses.append(loss.item())
        return loss

    def on_train_epoch_end(self):
        print(f"epoch {self.current_epoch} loss {sum(self.losses) / len(self.losses):.6f}")
        self.losses.clear()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=5e-3)


if __name__ == "__main__":
    L.seed_everything(6, workers=True, verbose=False)
    g = torch.Generator().manual_seed(6)
    x = torch.randn(120, 8, generator=g)
    data = TensorDataset(x, x[:, :4].mul(x[:, 4:]).sum(1, keepdim=True))
    trainer = L.Trainer(
        max_epochs=4, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[ModelCheckpoint("ckpt", save_last=True)])
    trainer.fit(
        Regression(), DataLoader(data, 12, sampler=EpochSampler(len(data))),
        ckpt_path="ckpt/last.ckpt" if os.path.exists("ckpt/last.ckpt") else None)
