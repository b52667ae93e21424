"""A LightningModule on all ranks of the launcher: the global batch is kept, and metrics are averaged."""

import os

import lightning as L
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
BATCH = 8
L.seed_everything(1, verbose=False)


def loader(*tensors):
    data = TensorDataset(*tensors)
    return DataLoader(data, BATCH // RANKS, sampler=DistributedSampler(data, RANKS, RANK, shuffle=False))


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))

    def training_step(self, batch, index):
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, index):
        right = (self.net(batch[0]).argmax(1) == batch[1]).float().mean()
        self.log("accuracy", right, sync_dist=True)

    def on_validation_epoch_end(self):
        self.print(f"epoch {self.current_epoch}")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


x = torch.randn(96, 10)
y = (x.sum(1) > 0).long()
trainer = L.Trainer(
    max_epochs=2,
    devices=RANKS,
    accelerator="cpu",
    strategy="ddp" if RANKS > 1 else "auto",
    enable_progress_bar=False,
    logger=False,
    enable_checkpointing=False,
    enable_model_summary=False,
    use_distributed_sampler=False,  # Lightning's own shuffles
)
trainer.fit(Net(), loader(x[:64], y[:64]), loader(x[64:], y[64:]))
if trainer.is_global_zero:
    print("accuracy", round(trainer.callback_metrics["accuracy"].item(), 6))
