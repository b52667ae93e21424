"""CLIP-like loss over the features of all ranks, gathered with their gradients."""
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_nn
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class Encoders(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = nn.Linear(16, 8), nn.Linear(12, 8)
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, image, text):
        return F.normalize(self.image(image), dim=1), F.normalize(self.text(text), dim=1), self.scale.exp()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    g = torch.Generator().manual_seed(6)
    images = torch.randn(144, 16, generator=g)
    texts = images[:, :12] + 0.5 * torch.randn(144, 12, generator=g)
    torch.manual_seed(0)
    model = DDP(Encoders())
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for step in range(12):
        whole = torch.arange(step % 6 * 24, step % 6 * 24 + 24)
        own = whole.chunk(world)[rank]
        image, text, scale = model(images[own], texts[own])
        all_images, all_texts = torch.cat(dist_nn.all_gather(image)), torch.cat(dist_nn.all_gather(text))
        logits = scale * all_images @ all_texts.T
        target = torch.arange(24)
        loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
