"""Trains a generator of bright discs against a discriminator; a plain PyTorch script for one device.

Run it with ``python examples/gan.py``, or on two workers with ``samestep run -n 2 examples/gan.py``.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

NOISE, EPOCHS, BATCH_SIZE = 10, 3, 32


def discs(count: int) -> torch.Tensor:
    """Draw a disc somewhere in each image of 16 x 16 pixels, with values between -1 and 1."""
    rows, columns = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    row, column, radius = 4 + 8 * torch.rand(3, count, 1, 1)
    distance = torch.sqrt((rows - row) ** 2 + (columns - column) ** 2)
    return torch.tanh(radius / 2 - distance).unsqueeze(1)


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = nn.Sequential(
        nn.Linear(NOISE, 32 * 4 * 4),
        nn.Unflatten(1, (32, 4, 4)),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.ConvTranspose2d(32, 16, 4, 2, 1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.ConvTranspose2d(16, 1, 4, 2, 1),
        nn.Tanh(),
    ).to(device)
    discriminator = nn.Sequential(
        nn.Conv2d(1, 16, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(16, 32, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 1),
    ).to(device)
    of_generator = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    of_discriminator = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    loader = DataLoader(TensorDataset(discs(320)), batch_size=BATCH_SIZE, shuffle=True)

    for epoch in range(EPOCHS):
        for (images,) in loader:
            real = images.to(device)
            fake = generator(torch.randn(len(real), NOISE, device=device))
            # softplus(-x) is the loss of "real", softplus(x) that of "fake".
            critic = F.softplus(-discriminator(real)).mean() + F.softplus(discriminator(fake.detach())).mean()
            of_discriminator.zero_grad()
            critic.backward()
            of_discriminator.step()

            fooled = F.softplus(-discriminator(fake)).mean()
            of_generator.zero_grad()
            fooled.backward()
            of_generator.step()
        print(f"epoch {epoch + 1}: discriminator {critic.item():.4f}, generator {fooled.item():.4f}")

    torch.save(generator.state_dict(), "generator.pt")


if __name__ == "__main__":
    main()
