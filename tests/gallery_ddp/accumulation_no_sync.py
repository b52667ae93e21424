import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

# config
global_batch = 24
grad_accum = 2
epochs = 5
clip = 0.5

dist.init_process_group(backend="gloo")
ddp_rank = int(os.environ["RANK"])
ddp_world_size = int(os.environ["WORLD_SIZE"])
master = ddp_rank == 0
torch.set_default_dtype(torch.float64)
torch.manual_seed(1337)

# next character of a periodic text with noise
g = torch.Generator().manual_seed(2)
text = (torch.arange(97 * 9) % 7 + (torch.rand(97 * 9, generator=g) < 0.1)) % 7
windows = text.view(97, 9)[:96]
dataset = TensorDataset(windows[:, :-1], windows[:, 1:])
sampler = DistributedSampler(dataset, shuffle=True)
loader = DataLoader(dataset, batch_size=global_batch // grad_accum // ddp_world_size, sampler=sampler)


class CharModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(7, 12)
        self.mix = nn.Linear(24, 32)
        self.head = nn.Linear(32, 7)

    def forward(self, idx, targets):
        x = self.emb(idx)
        before = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], dim=1)
        logits = self.head(torch.relu(self.mix(torch.cat([x, before], dim=2))))
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


model = DDP(CharModel())
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.1)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs * len(loader) // grad_accum)

iter_num = 0
for epoch in range(epochs):
    sampler.set_epoch(epoch)
    lossf = torch.zeros(())
    for i, (X, Y) in enumerate(loader):
        last = (i + 1) % grad_accum == 0
        with contextlib.nullcontext() if last else model.no_sync():
            _, loss = model(X, Y)
            loss = loss / grad_accum
            loss.backward()
        lossf += loss.detach()
        if last:
            norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad(set_to_none=True)
            dist.all_reduce(lossf, op=dist.ReduceOp.SUM)
            if master:
                print(f"iter {iter_num}: loss {lossf.item() / ddp_world_size:.8f}, norm {norm.item():.8f}")
            lossf = torch.zeros(())
            iter_num += 1
dist.destroy_process_group()
