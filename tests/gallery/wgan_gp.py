import csv

import numpy as np
import torch
import torch.autograd as autograd
import torch.nn as nn
import torch.optim as optim

torch.set_default_dtype(torch.float64)
torch.manual_seed(1)
np.random.seed(1)

DIM = 32            # Model dimensionality
LAMBDA = 0.1        # Gradient penalty coefficient
CRITIC_ITERS = 5    # Critic updates per generator update
BATCH_SIZE = 50
ITERS = 15


class Generator(nn.Module):
    def __init__(self):
        super(Generator, self).__init__()
        self.main = nn.Sequential(
            nn.Linear(2, DIM), nn.ReLU(True), nn.Linear(DIM, DIM), nn.ReLU(True), nn.Linear(DIM, 2))

    def forward(self, noise):
        return self.main(noise)


class Critic(nn.Module):
    def __init__(self):
        super(Critic, self).__init__()
        self.main = nn.Sequential(
            nn.Linear(2, DIM), nn.LeakyReLU(0.1), nn.Linear(DIM, DIM), nn.Softplus(), nn.Linear(DIM, 1))

    def forward(self, inputs):
        return self.main(inputs).view(-1)


def inf_train_gen():
    angles = 2 * np.pi * np.arange(8) / 8
    centers = 2.0 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    while True:
        which = np.random.randint(8, size=BATCH_SIZE)
        yield (centers[which] + 0.02 * np.random.randn(BATCH_SIZE, 2)) / 1.414


def calc_gradient_penalty(netD, real_data, fake_data):
    alpha = torch.rand(real_data.size(0), 1)
    alpha = alpha.expand(real_data.size())
    interpolates = alpha * real_data + (1 - alpha) * fake_data
    interpolates.requires_grad_(True)

    disc_interpolates = netD(interpolates)
    gradients = autograd.grad(outputs=disc_interpolates, inputs=interpolates,
                              grad_outputs=torch.ones(disc_interpolates.size()),
                              create_graph=True, retain_graph=True, only_inputs=True)[0]
    return ((gradients.norm(2, dim=1) - 1) ** 2).mean() * LAMBDA


netG = Generator()
netD = Critic()
optimizerD = optim.Adam(netD.parameters(), lr=1e-3, betas=(0.5, 0.9))
optimizerG = optim.Adam(netG.parameters(), lr=1e-3, betas=(0.5, 0.9))

one = torch.tensor(1.0)
mone = one * -1
data = inf_train_gen()
log = open("log.csv", "w", newline="")
writer = csv.writer(log)
writer.writerow(["iteration", "disc_cost", "wasserstein", "gen_cost"])

for iteration in range(ITERS):
    for p in netD.parameters():
        p.requires_grad = True
    for iter_d in range(CRITIC_ITERS):
        real_data = torch.from_numpy(next(data))
        netD.zero_grad()

        D_real = netD(real_data).mean()
        D_real.backward(mone)

        with torch.no_grad():
            fake = netG(torch.randn(BATCH_SIZE, 2))
        D_fake = netD(fake).mean()
        D_fake.backward(one)

        gradient_penalty = calc_gradient_penalty(netD, real_data, fake)
        gradient_penalty.backward()

        D_cost = D_fake - D_real + gradient_penalty
        Wasserstein_D = D_real - D_fake
        optimizerD.step()

    for p in netD.parameters():
        p.requires_grad = False
    netG.zero_grad()
    G = netD(netG(torch.randn(BATCH_SIZE, 2))).mean()
    G.backward(mone)
    optimizerG.step()

    writer.writerow([iteration, D_cost.item(), Wasserstein_D.item(), -G.item()])
    if iteration % 5 == 4:
        print("iter {:3d}  disc cost {:.10f}  wasserstein {:.10f}  penalty {:.10f}  gen cost {:.10f}".format(
            iteration + 1, D_cost.item(), Wasserstein_D.item(), gradient_penalty.item(), -G.item()))

log.close()
with torch.no_grad():
    np.save("samples.npy", netG(torch.randn(37, 2)).numpy())
