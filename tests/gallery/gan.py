import random

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)

manualSeed = 999
print("Random Seed:", manualSeed)
random.seed(manualSeed)
torch.manual_seed(manualSeed)

batch_size = 25
nz, ngf, ndf = 10, 8, 8
num_epochs = 3
lr, beta1 = 0.001, 0.5

# Images of a bright disc somewhere in an 8x8 frame, scaled to [-1, 1]
ys, xs = torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij")
cx, cy, r = 2 + 4 * torch.rand(3, 212, 1, 1)
discs = torch.tanh(r - torch.sqrt((xs - cx) ** 2 + (ys - cy) ** 2 + 1e-6)).unsqueeze(1)
dataloader = DataLoader(TensorDataset(discs), batch_size=batch_size, shuffle=True)


def weights_init(m):
    classname = m.__class__.__name__
    if classname.find("Conv") != -1:
        nn.init.normal_(m.weight.data, 0.0, 0.05)
    elif classname.find("BatchNorm") != -1:
        nn.init.normal_(m.weight.data, 1.0, 0.02)
        nn.init.constant_(m.bias.data, 0)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf * 2, 2, 1, 0, bias=False),
            nn.BatchNorm2d(ngf * 2), nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ngf), nn.ReLU(True),
            nn.ConvTranspose2d(ngf, 1, 4, 2, 1, bias=False), nn.Tanh())

    def forward(self, input):
        return self.main(input)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, ndf, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ndf * 2), nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf * 2, 1, 2, 1, 0, bias=False), nn.Sigmoid())

    def forward(self, input):
        return self.main(input).view(-1)


netG, netD = Generator(), Discriminator()
netG.apply(weights_init)
netD.apply(weights_init)
criterion = nn.BCELoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=lr, betas=(beta1, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=lr, betas=(beta1, 0.999))

fixed_noise = torch.randn(16, nz, 1, 1)
real_label = torch.full((batch_size,), 0.9)
fake_label = torch.full((batch_size,), 0.0)
img_list, G_losses, D_losses = [], [], []

for epoch in range(num_epochs):
    for i, (real,) in enumerate(dataloader):
        n = real.size(0)
        # Update D: maximize log(D(x)) + log(1 - D(G(z)))
        netD.zero_grad()
        output = netD(real)
        errD_real = criterion(output, real_label[:n])
        errD_real.backward()
        D_x = output.mean().item()

        fake = netG(torch.randn(batch_size, nz, 1, 1))
        output = netD(fake.detach())
        errD_fake = criterion(output, fake_label)
        errD_fake.backward()
        D_G_z1 = output.mean().item()
        optimizerD.step()

        # Update G: maximize log(D(G(z)))
        netG.zero_grad()
        output = netD(fake)
        errG = criterion(output, real_label.fill_(1.0))
        errG.backward()
        optimizerG.step()
        real_label.fill_(0.9)

        G_losses.append(errG.item())
        D_losses.append((errD_real + errD_fake).item())
        if i % 4 == 0:
            print("[%d/%d][%d/%d]\tLoss_D: %.10f\tLoss_G: %.10f\tD(x): %.10f\tD(G(z)): %.10f / %.10f"
                  % (epoch, num_epochs, i, len(dataloader), D_losses[-1], G_losses[-1],
                     D_x, D_G_z1, output.mean().item()))
    with torch.no_grad():
        img_list.append(netG(fixed_noise).numpy())

np.save("fake_images.npy", np.stack(img_list))
torch.save({"G": netG.state_dict(), "D": netD.state_dict()}, "gan.pth")
