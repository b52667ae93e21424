"""Lightning's Trainer, on one device or on as many as the flags select."""

import argparse
import logging

import lightning as L
from task import BATCH, network, optimizer_of, report, samples
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--devices", type=int, default=1)
parser.add_argument("--num_nodes", type=int, default=1)
parser.add_argument("--strategy", default="auto")
args = parser.parse_args()
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = network()
        self.samples = 0

    def train_dataloader(self):
        size, rank = self.trainer.world_size, self.trainer.global_rank
        in_order = DistributedSampler(samples(), size, rank, shuffle=False)
        return DataLoader(samples(), BATCH // size, sampler=in_order)

    def training_step(self, batch, index):
        self.samples += len(batch[0])
        return cross_entropy(self.layers(batch[0]), batch[1])

    def configure_optimizers(self):
        return optimizer_of(self)


net = Net()
trainer = L.Trainer(
    max_epochs=1,
    devices=args.devices,
    num_nodes=args.num_nodes,
    strategy=args.strategy,
    accelerator="cpu",
    enable_progress_bar=False,
    enable_checkpointing=False,
    enable_model_summary=False,
    logger=False,
    use_distributed_sampler=False,
)
trainer.fit(net)
if trainer.is_global_zero:
    report(net, trainer.global_step, net.samples * trainer.world_size)
