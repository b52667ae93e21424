"""Trains a small causal language model with the Trainer of Transformers."""

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed


class Counting(Dataset):
    """Sequences that count on from a random number."""

    def __init__(self, count):
        starts = torch.randint(30, (count, 1), generator=torch.Generator().manual_seed(7))
        self.ids = (starts + torch.arange(10)) % 30

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


class Printed(TrainerCallback):
    """Prints the logged losses."""

    def on_log(self, args, state, control, logs=None, **_):
        for name in ("loss", "eval_loss"):
            if name in (logs or {}):
                print(f"loss {float(logs[name]):.6f}")


set_seed(7)
arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=16,
    max_steps=8,
    learning_rate=1e-3,
    logging_steps=1,
    eval_strategy="steps",
    eval_steps=4,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
)
model = GPT2LMHeadModel(
    GPT2Config(vocab_size=30, n_positions=16, n_embd=32, n_layer=2, n_head=2, attn_pdrop=0.0)
)
Trainer(
    model=model,
    args=arguments,
    train_dataset=Counting(128),
    eval_dataset=Counting(32),
    callbacks=[Printed()],
).train()
