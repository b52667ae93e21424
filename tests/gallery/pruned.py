"""Weights are pruned, normalized and restored between steps: torch's hooks compute them before each forward."""
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.nn.utils.prune as prune

torch.set_default_dtype(torch.float64)
torch.manual_seed(83)

model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(120, 6)
y = (x[:, 0] * x[:, 1] > 0).long()


def train(steps):
    for _ in range(steps):
        chosen = torch.randint(0, len(x), (24,))
        loss = F.cross_entropy(model(x[chosen]), y[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


print(f"dense {train(12):.10f}")
for level in range(2):
    prune.l1_unstructured(model[0], "weight", amount=0.3)
    print(f"pruned {level}: {train(12):.10f}, zeros {(model[0].weight == 0).sum().item()}")
prune.global_unstructured([(model[2], "weight"), (model[4], "weight")], prune.L1Unstructured, amount=0.2)
print(f"all layers {train(12):.10f}")
prune.remove(model[0], "weight")
print(f"removed {train(12):.10f}, zeros {(model[0].weight == 0).sum().item()}")
nn.utils.spectral_norm(model[0])
print(f"normalized {train(12):.10f}")
torch.save(model.state_dict(), "pruned.pt")
