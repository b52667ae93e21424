"""Trains a LightningModule on one device.

Run it with ``python examples/lightning_module.py``, or on two workers with
``samestep run -n 2 examples/lightning_module.py``.
"""

import lightning
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:  # noqa: ARG002
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        print(f"step {self.global_step}: loss {loss.item():.5f}")
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    lightning.seed_everything(1, verbose=False)
    x = torch.randn(96, 10)
    data = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=16, shuffle=True)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(max_epochs=2, devices=1, enable_checkpointing=False, **quiet)
    trainer.fit(Classifier(), data)


if __name__ == "__main__":
    main()
