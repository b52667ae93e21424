# Two stages: a rough one with clipped gradient values, then a fine one with a clipped gradient norm.
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

torch.set_default_dtype(torch.float64)
torch.manual_seed(77)


class Autoencoder(nn.Module):
  def __init__(self, n_in, n_code):
    super().__init__()
    self.encoder = nn.Sequential(nn.Linear(n_in, 20), nn.ELU(), nn.Linear(20, n_code))
    self.decoder = nn.Sequential(nn.Linear(n_code, 20), nn.ELU(), nn.Linear(20, n_in))

  def forward(self, x):
    code = self.encoder(x)
    return self.decoder(code), code


def get_data(n):
  basis = torch.randn(3, 15)
  return torch.tanh(torch.randn(n, 3) @ basis) * 2.0


data = get_data(236)
train_x, valid_x = data[:186], data[186:]
loader = torch.utils.data.DataLoader(train_x, batch_size=37, shuffle=True)
model = Autoencoder(15, 3)
mse = nn.MSELoss()
l1 = nn.L1Loss(reduction="sum")


def validate(tag):
  model.eval()
  with torch.no_grad():
    recon, code = model(valid_x)
    print(f"{tag} valid mse {mse(recon, valid_x).item():.10f} code std {code.std().item():.10f}")
  model.train()


print("stage 1: clip by value")
opt = torch.optim.SGD(model.parameters(), lr=0.2)
for epoch in range(8):
  total = 0.0
  for x in loader:
    opt.zero_grad()
    recon, _ = model(x)
    loss = mse(recon, x)
    loss.backward()
    clip_grad_value_(model.parameters(), 0.02)
    opt.step()
    total += loss.item() * x.shape[0]
  if epoch % 2 == 1:
    print(f"  epoch {epoch} train mse {total / len(train_x):.10f}")
validate("stage 1")

print("stage 2: clip by norm, with a sparse code")
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
norms = []
for epoch in range(6):
  for x in loader:
    opt.zero_grad()
    recon, code = model(x)
    loss = ((recon - x) ** 2).sum() / x.size(0) + 0.01 * l1(code, torch.zeros_like(code))
    loss.backward()
    norm = clip_grad_norm_(model.parameters(), max_norm=2.0)
    norms.append(norm)
    opt.step()
  clipped = sum(int(n > 2.0) for n in norms[-len(loader):])
  print(f"  epoch {epoch} loss {loss.item():.10f} gradient norm {norm:.10f} ({clipped} of {len(loader)} clipped)")
validate("stage 2")

torch.save({"state": model.state_dict(), "norms": torch.stack(norms)}, "autoencoder.pt")
