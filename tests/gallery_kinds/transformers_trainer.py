"""The Trainer of transformers, with a network of the user's."""

import torch
from task import BATCH, LR, network, report, samples
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, SequentialSampler
from transformers import Trainer, TrainingArguments


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = network()
        self.samples = 0

    def forward(self, x, labels):
        logits = self.layers(x)
        return {"loss": cross_entropy(logits, labels), "logits": logits}


class Rows(Dataset):
    def __len__(self):
        return len(samples())

    def __getitem__(self, index):
        x, y = samples()[index]
        return {"x": x, "labels": y}


class InOrder(Trainer):
    def _get_train_sampler(self, *_):
        return SequentialSampler(self.train_dataset)


model = Classifier()
arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=BATCH,
    num_train_epochs=1,
    learning_rate=LR,
    lr_scheduler_type="constant",
    optim="sgd",
    max_grad_norm=0.0,
    use_cpu=True,
    report_to=[],
    save_strategy="no",
    disable_tqdm=True,
)
trainer = InOrder(model=model, args=arguments, train_dataset=Rows())
trainer.train()
if trainer.is_world_process_zero():
    steps = trainer.state.global_step
    report(model, steps, steps * trainer.state.train_batch_size * arguments.world_size)
