"""Trains a variational autoencoder, which draws noise in forward; both loaders have worker processes."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(36, 24), nn.ReLU(), nn.Linear(24, 8))
        self.decode = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 36))

    def forward(self, x):
        mean, log_variance = self.encode(x.flatten(1)).chunk(2, dim=1)
        code = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return self.decode(code), mean, log_variance


def loss_of(decoded, x, mean, log_variance):
    kl = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum()
    return F.binary_cross_entropy_with_logits(decoded, x.flatten(1), reduction="sum") + kl


def main():
    torch.manual_seed(4)
    pixels = (torch.rand(144, 1, 6, 6) < torch.linspace(0.1, 0.9, 6)).float()
    training = DataLoader(TensorDataset(pixels[:96]), batch_size=16, shuffle=True, num_workers=1)
    testing = DataLoader(TensorDataset(pixels[96:]), batch_size=24, num_workers=1)
    model = VAE().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for loader in (training, testing, training):
        model.train(loader is training)
        for (images,) in loader:
            x = images.to(device)
            with torch.set_grad_enabled(loader is training):
                decoded, *moments = model(x)
                loss = loss_of(decoded, x, *moments)
            if loader is training:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            print(f"loss {loss.item() / len(x):.6f}")


if __name__ == "__main__":
    main()
