"""Trains a tiny BERT with the Trainer of Transformers, on the steps of one device.

Run it with ``python examples/hf_trainer.py``, or on two workers with
``samestep run -n 2 examples/hf_trainer.py``.
"""

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed


class Sentences(Dataset):
    """Sentences of 12 random words; the label is whether most words are of the vocabulary's second half."""

    def __init__(self, count: int, seed: int) -> None:
        self.words = torch.randint(1, 50, (count, 12), generator=torch.Generator().manual_seed(seed))
        self.labels = (self.words > 25).sum(1).gt(6).long()

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.words[index], "labels": self.labels[index]}


def main() -> None:
    set_seed(1)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    arguments = TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=16,  # the global batch, unless --mode native is given
        num_train_epochs=2,
        learning_rate=1e-3,
        logging_steps=4,
        eval_strategy="epoch",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=BertForSequenceClassification(BertConfig(vocab_size=50, **sizes)),
        args=arguments,
        train_dataset=Sentences(128, seed=1),
        eval_dataset=Sentences(64, seed=2),
    )
    result = trainer.train()
    print(f"{result.global_step} steps, loss {result.training_loss:.5f}")


if __name__ == "__main__":
    main()
