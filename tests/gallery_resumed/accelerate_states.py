"""A training loop with Accelerate that saves its state every few steps and at the end of each epoch."""

import argparse
import os

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch.utils.data import DataLoader, TensorDataset


def points(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 12, generator=g)
    return TensorDataset(x, (x[:, :6].sum(1) > x[:, 6:].sum(1)).long())


def main(args):
    set_seed(args.seed)
    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
    model = torch.nn.Sequential(torch.nn.Linear(12, 24), torch.nn.GELU(), torch.nn.Linear(24, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=40)
    train_loader = DataLoader(points(160, 0), 16, shuffle=True)
    test_loader = DataLoader(points(64, 1), 16)
    model, optimizer, train_loader, test_loader, schedule = accelerator.prepare(
        model, optimizer, train_loader, test_loader, schedule)

    overall_step = starting_epoch = resume_step = 0
    if args.resume_from_checkpoint:
        accelerator.load_state(args.resume_from_checkpoint)
        overall_step = int(os.path.basename(args.resume_from_checkpoint).removeprefix("step_"))
        starting_epoch, resume_step = divmod(overall_step, len(train_loader))
        accelerator.print(f"resumed at epoch {starting_epoch}, batch {resume_step}")

    for epoch in range(starting_epoch, args.epochs):
        model.train()
        train_loader.set_epoch(epoch)
        if epoch == starting_epoch and resume_step:
            batches = accelerator.skip_first_batches(train_loader, resume_step)
        else:
            batches = train_loader
        for x, y in batches:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            overall_step += 1
            if overall_step % args.checkpointing_steps == 0:
                accelerator.save_state(os.path.join(args.output_dir, f"step_{overall_step}"))
        model.eval()
        right = 0
        for x, y in test_loader:
            with torch.no_grad():
                guess = model(x).argmax(-1)
            guess, y = accelerator.gather_for_metrics((guess, y))
            right += int((guess == y).sum())
        accelerator.print(f"epoch {epoch}: loss {loss.item():.6f} accuracy {right / len(test_loader.dataset):.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--output_dir", default="out")
    parser.add_argument("--checkpointing_steps", type=int, default=6)
    parser.add_argument("--resume_from_checkpoint", default=None)
    main(parser.parse_args())
