import argparse
import os

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

p = argparse.ArgumentParser()
p.add_argument("--work_dir", default="work")
p.add_argument("--resume", action="store_true")
p.add_argument("--save_every", type=int, default=10)
args = p.parse_args()
os.makedirs(args.work_dir, exist_ok=True)
last = os.path.join(args.work_dir, "last.pth")

g = torch.Generator().manual_seed(11)
inputs = torch.randn(256, 12, generator=g)
targets = inputs.roll(1, 1) * inputs.sign()


class AutoEncoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Linear(12, 32)
        self.decoder = torch.nn.Linear(32, 12)

    def forward(self, x):
        return self.decoder(F.silu(self.encoder(x)))


def loader_of(epoch):
    order = torch.Generator().manual_seed(1000 + epoch)
    return DataLoader(TensorDataset(inputs, targets), batch_size=16, shuffle=True, generator=order)


torch.manual_seed(11)
model = AutoEncoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.7)
step = first_epoch = 0
if args.resume:
    ckpt = torch.load(last)
    model.load_state_dict(ckpt["model"])
    optimizer.load_state_dict(ckpt["optimizer"])
    scheduler.load_state_dict(ckpt["scheduler"])
    step, first_epoch = ckpt["step"], ckpt["epoch"]
    print("resumed from", last, "at step", step)

for epoch in range(first_epoch, 4):
    for x, y in loader_of(epoch):
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        step += 1
        if step % args.save_every == 0:
            print(f"step {step} epoch {epoch} loss {loss.item():.6f}")
            torch.save({
                "model": model.state_dict(), "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(), "step": step, "epoch": epoch}, last)
torch.save(model.state_dict(), os.path.join(args.work_dir, "final.pth"))
