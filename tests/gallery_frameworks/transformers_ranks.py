"""Classify with the Trainer of transformers on all ranks of the launcher, with one global batch."""

import os

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed


class Sentences(Dataset):
    def __init__(self, size, seed):
        g = torch.Generator().manual_seed(seed)
        self.words = torch.randint(1, 50, (size, 12), generator=g)
        self.labels = (self.words > 25).sum(1).gt(6).long()

    def __len__(self):
        return len(self.words)

    def __getitem__(self, index):
        return {"input_ids": self.words[index], "labels": self.labels[index]}


RANKS = int(os.environ.get("WORLD_SIZE", "1"))
set_seed(1)
model = BertForSequenceClassification(
    BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
)
arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=8 // RANKS,
    per_device_eval_batch_size=8 // RANKS,
    num_train_epochs=2,
    learning_rate=1e-3,
    logging_steps=2,
    report_to=[],
    save_strategy="no",
    disable_tqdm=True,
    eval_strategy="epoch",
    dataloader_pin_memory=False,
    use_cpu=True,
    average_tokens_across_devices=False,
)
trainer = Trainer(
    model=model,
    args=arguments,
    train_dataset=Sentences(64, 1),
    eval_dataset=Sentences(40, 2),
    compute_metrics=lambda p: {"accuracy": float((p.predictions.argmax(1) == p.label_ids).mean())},
)
result = trainer.train()
print("steps", result.global_step, "loss", round(result.training_loss, 6))
print("eval", round(trainer.evaluate()["eval_loss"], 6), trainer.evaluate()["eval_accuracy"])
