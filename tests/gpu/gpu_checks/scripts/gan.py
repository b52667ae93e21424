"""Trains a generator with batch norm against a discriminator, each with its optimizer."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.backends.cudnn.allow_tf32 = False
torch.manual_seed(6)
generator = nn.Sequential(
    *(nn.Linear(8, 128), nn.Unflatten(1, (8, 4, 4)), nn.BatchNorm2d(8), nn.ReLU()),
    *(nn.ConvTranspose2d(8, 8, 4, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 1, 3, 1, 1), nn.Tanh()),
).to(device)
discriminator = nn.Sequential(
    nn.Conv2d(1, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(128, 1)
).to(device)
of_generator = torch.optim.Adam(generator.parameters(), lr=5e-4, betas=(0.5, 0.999))
of_discriminator = torch.optim.Adam(discriminator.parameters(), lr=5e-4, betas=(0.5, 0.999))
judge = nn.BCEWithLogitsLoss()
ones, zeros = torch.ones(20, 1, device=device), torch.zeros(20, 1, device=device)
stripes = torch.sin(torch.arange(8.0)).expand(1, 8, 8)

for _ in range(8):
    real = (stripes * torch.rand(20, 1, 1, 1)).to(device)
    fake = generator(torch.randn(20, 8, device=device))
    critic = judge(discriminator(real), ones) + judge(discriminator(fake.detach()), zeros)
    of_discriminator.zero_grad()
    critic.backward()
    of_discriminator.step()

    fooled = judge(discriminator(fake), ones)
    of_generator.zero_grad()
    fooled.backward()
    of_generator.step()
    print(f"loss {critic.item():.6f}")
    print(f"loss {fooled.item():.6f}")
