import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class SimCLR(nn.Module):
    """Encoder and projection head; a call with two views gives the NT-Xent loss of the batch."""

    def __init__(self, dim, hidden=32, out=12, temperature=0.2):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.projection = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, out))
        self.temperature = temperature

    def forward(self, x1, x2):
        n = x1.shape[0]
        z = torch.cat([self.projection(self.encoder(x1)), self.projection(self.encoder(x2))])
        z = F.normalize(z, dim=1)
        similarity = z @ z.T / self.temperature
        itself = torch.eye(2 * n, dtype=torch.bool, device=z.device)
        similarity = similarity.masked_fill(itself, float("-inf"))
        partner = torch.cat([torch.arange(n, 2 * n), torch.arange(n)]).to(z.device)
        return F.cross_entropy(similarity, partner)


def augment(x, strength):
    scaled = x * (1 + 0.3 * strength * torch.randn(x.shape[0], 1))
    dropped = scaled * (torch.rand_like(x) > 0.15 * strength)
    return dropped + 0.2 * strength * torch.randn_like(x)


def linear_probe(features, labels, split):
    probe = nn.Linear(features.shape[1], int(labels.max()) + 1)
    optimizer = torch.optim.SGD(probe.parameters(), lr=0.5, momentum=0.9)
    for _ in range(40):
        loss = F.cross_entropy(probe(features[:split]), labels[:split])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        right = probe(features[split:]).argmax(1) == labels[split:]
    return loss.item(), right.double().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch_size", type=int, default=37)
    parser.add_argument("--strength", type=float, default=1.0)
    opt = parser.parse_args()
    print(opt)

    torch.set_default_dtype(torch.float64)
    torch.manual_seed(64)
    centres = torch.randn(6, 24)
    labels = torch.randint(6, (251,))
    data = centres[labels] + 0.9 * torch.randn(251, 24)

    model = SimCLR(24)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=1e-5)
    curve = []
    began = time.time()
    for epoch in range(opt.epochs):
        model.train()
        for batch in torch.randperm(len(data)).split(opt.batch_size):
            x = data[batch]
            loss = model(augment(x, opt.strength), augment(x, opt.strength))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            curve.append(loss.item())
        print("epoch %d: contrastive loss %.10f" % (epoch, np.mean(curve[-7:])))
    print("pretraining time: %.2f" % (time.time() - began))

    model.eval()
    with torch.no_grad():
        features = model.encoder(data)
    probe_loss, probe_acc = linear_probe(features, labels, split=180)
    print("linear probe: loss %.10f, accuracy %.10f" % (probe_loss, probe_acc))
    np.save("curve.npy", np.array(curve))
    torch.save(model.encoder.state_dict(), "encoder.pth")


if __name__ == "__main__":
    main()
