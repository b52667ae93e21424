import argparse

import numpy as np
import torch
import torch.utils.data
from torch import nn, optim
from torch.nn import functional as F

parser = argparse.ArgumentParser(description='VAE on small shapes')
parser.add_argument('--batch-size', type=int, default=32)
parser.add_argument('--epochs', type=int, default=6)
parser.add_argument('--seed', type=int, default=1)
parser.add_argument('--log-interval', type=int, default=3)
args = parser.parse_args()

torch.set_default_dtype(torch.float64)
torch.manual_seed(args.seed)


def shapes(n):
    # rectangles of random size and place
    out = torch.zeros(n, 1, 8, 8)
    for image in out:
        top, left = torch.randint(0, 4, (2,)).tolist()
        h, w = torch.randint(2, 5, (2,)).tolist()
        image[0, top:top + h, left:left + w] = 1.0
    return torch.utils.data.TensorDataset(out, torch.zeros(n))


train_loader = torch.utils.data.DataLoader(shapes(267), batch_size=args.batch_size, shuffle=True)
test_loader = torch.utils.data.DataLoader(shapes(77), batch_size=args.batch_size, shuffle=False)


class VAE(nn.Module):
    def __init__(self):
        super(VAE, self).__init__()

        self.fc1 = nn.Linear(64, 40)
        self.fc21 = nn.Linear(40, 5)
        self.fc22 = nn.Linear(40, 5)
        self.fc3 = nn.Linear(5, 40)
        self.fc4 = nn.Linear(40, 64)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5*logvar)
        eps = torch.randn_like(std)
        return mu + eps*std

    def decode(self, z):
        h3 = F.relu(self.fc3(z))
        return torch.sigmoid(self.fc4(h3))

    def forward(self, x):
        mu, logvar = self.encode(x.view(-1, 64))
        z = self.reparameterize(mu, logvar)
        return self.decode(z), mu, logvar


model = VAE()
optimizer = optim.Adam(model.parameters(), lr=3e-3)


def loss_function(recon_x, x, mu, logvar):
    BCE = F.binary_cross_entropy(recon_x, x.view(-1, 64), reduction='sum')
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return BCE + KLD


def train(epoch):
    model.train()
    train_loss = 0
    for batch_idx, (data, _) in enumerate(train_loader):
        optimizer.zero_grad()
        recon_batch, mu, logvar = model(data)
        loss = loss_function(recon_batch, data, mu, logvar)
        loss.backward()
        train_loss += loss.item()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            print('Train Epoch: {} [{}/{} ({:.0f}%)]\tLoss: {:.10f}'.format(
                epoch, batch_idx * len(data), len(train_loader.dataset),
                100. * batch_idx / len(train_loader), loss.item() / len(data)))
    print('====> Epoch: {} Average loss: {:.10f}'.format(epoch, train_loss / len(train_loader.dataset)))


def test(epoch):
    model.eval()
    test_loss = 0
    with torch.no_grad():
        for i, (data, _) in enumerate(test_loader):
            recon_batch, mu, logvar = model(data)
            test_loss += loss_function(recon_batch, data, mu, logvar).item()
            if i == 0:
                n = min(data.size(0), 8)
                comparison = torch.cat([data[:n], recon_batch.view(data.size(0), 1, 8, 8)[:n]])
                np.save('reconstruction_' + str(epoch) + '.npy', comparison.numpy())
    print('====> Test set loss: {:.10f}'.format(test_loss / len(test_loader.dataset)))


if __name__ == "__main__":
    for epoch in range(1, args.epochs + 1):
        train(epoch)
        test(epoch)
    with torch.no_grad():
        sample = model.decode(torch.randn(19, 5))
        np.save('sample.npy', sample.view(19, 1, 8, 8).numpy())
