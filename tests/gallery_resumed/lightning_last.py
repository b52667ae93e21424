"""Trains a LightningModule; `--resume` goes on from out/last.ckpt."""

import sys

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class RandomState(Callback):
    """Keeps torch's random numbers in the checkpoint, which Lightning does not."""

    def state_dict(self):
        return {"torch": torch.get_rng_state()}

    def load_state_dict(self, state_dict):
        torch.set_rng_state(state_dict["torch"])


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))

    def training_step(self, batch, index):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def validation_step(self, batch, index):
        x, y = batch
        self.log("accuracy", (self.net(x).argmax(1) == y).float().mean())

    def on_validation_epoch_end(self):
        if not self.trainer.sanity_checking:
            print(f"epoch {self.current_epoch} accuracy {self.trainer.callback_metrics['accuracy']:.4f}")

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)]


def main():
    L.seed_everything(1, verbose=False)
    g = torch.Generator().manual_seed(0)
    x = torch.randn(192, 10, generator=g)
    y = (x.sum(1) > 0).long()
    trainer = L.Trainer(
        max_epochs=4, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[RandomState(), ModelCheckpoint("out", save_last=True, save_on_train_epoch_end=True)])
    trainer.fit(
        Net(),
        DataLoader(TensorDataset(x[:128], y[:128]), 16, shuffle=True),
        DataLoader(TensorDataset(x[128:], y[128:]), 32),
        ckpt_path="out/last.ckpt" if "--resume" in sys.argv else None)
    trainer.save_checkpoint("final.ckpt", weights_only=True)


if __name__ == "__main__":
    main()
