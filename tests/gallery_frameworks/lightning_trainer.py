"""A LightningModule on as many devices as asked for, by default one."""

import sys

import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset

L.seed_everything(1, verbose=False)
DEVICES = int(sys.argv[2]) if "--devices" in sys.argv else 1


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))

    def training_step(self, batch, index):
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        print(f"step {self.global_step} loss {loss.item():.6f}")
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        self.log("accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


x = torch.randn(96, 10)
y = (x.sum(1) > 0).long()
trainer = L.Trainer(
    max_epochs=2,
    devices=DEVICES,
    accelerator="cpu",
    enable_progress_bar=False,
    logger=False,
    enable_checkpointing=False,
    enable_model_summary=False,
)
trainer.fit(
    Net(),
    DataLoader(TensorDataset(x[:64], y[:64]), 8, shuffle=True),
    DataLoader(TensorDataset(x[64:], y[64:]), 8),
)
print("accuracy", round(trainer.callback_metrics["accuracy"].item(), 6))
