import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Patches(Dataset):
    def __init__(self, seed, n=96):
        rng = np.random.default_rng(seed)
        self.images = rng.normal(size=(n, 1, 6, 6)).astype(np.float32)
        self.labels = (self.images[:, 0, :, :3].sum((1, 2)) > 0).astype(np.int64)
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        image = np.roll(self.images[i], self.rng.integers(-1, 2), axis=1)
        return image + 0.1 * self.rng.normal(size=image.shape).astype(np.float32), self.labels[i]


def worker_init(worker_id):
    info = get_worker_info()
    info.dataset.rng = np.random.default_rng([7, worker_id])


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--resume", metavar="FILE")
    return parser.parse_args()


def main():
    args = get_args()
    torch.manual_seed(7)
    shuffle = torch.Generator().manual_seed(7)
    loader = DataLoader(
        Patches(7), batch_size=12, shuffle=True, generator=shuffle, num_workers=2, worker_init_fn=worker_init,
        persistent_workers=True)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 20), nn.ReLU(), nn.Dropout(0.1), nn.Linear(20, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    start = 0
    if args.resume:
        ckpt = torch.load(args.resume)
        start = ckpt["epoch"]
        model.load_state_dict(ckpt["model"])
        optimizer.load_state_dict(ckpt["optimizer"])
        schedule.load_state_dict(ckpt["schedule"])
        shuffle.set_state(ckpt["shuffle"])
        torch.set_rng_state(ckpt["rng"])
    for epoch in range(start, args.epochs):
        losses = []
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        schedule.step()
        print(f"epoch {epoch} train loss {np.mean(losses):.6f}")
        torch.save({
            "epoch": epoch + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict(),
            "schedule": schedule.state_dict(), "shuffle": shuffle.get_state(), "rng": torch.get_rng_state()},
            "last.pt")


if __name__ == "__main__":
    main()
