"""Fine-tunes a small encoder with the Trainer; checkpoints every 5 steps."""

import argparse

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed


class Reviews(Dataset):
    def __init__(self, size, seed):
        g = torch.Generator().manual_seed(seed)
        self.words = torch.randint(1, 60, (size, 10), generator=g)
        self.labels = (self.words > 30).sum(1).gt(5).long()

    def __len__(self):
        return len(self.words)

    def __getitem__(self, index):
        return {"input_ids": self.words[index], "labels": self.labels[index]}


def accuracy(prediction):
    return {"accuracy": float((prediction.predictions.argmax(1) == prediction.label_ids).mean())}


parser = argparse.ArgumentParser()
parser.add_argument("--output_dir", default="out")
parser.add_argument("--resume_from_checkpoint", nargs="?", const=True, default=None)
args = parser.parse_args()

set_seed(3)
model = BertForSequenceClassification(BertConfig(
    vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32))
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir=args.output_dir, per_device_train_batch_size=8, per_device_eval_batch_size=16,
        gradient_accumulation_steps=2, num_train_epochs=3, learning_rate=2e-3, warmup_steps=4,
        save_strategy="steps", save_steps=5, save_total_limit=2, eval_strategy="epoch", logging_steps=1,
        report_to=[], disable_tqdm=True, dataloader_pin_memory=False, seed=3),
    train_dataset=Reviews(128, 1),
    eval_dataset=Reviews(48, 2),
    compute_metrics=accuracy,
)
trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
print("accuracy", trainer.evaluate()["eval_accuracy"])
trainer.save_model("final")
