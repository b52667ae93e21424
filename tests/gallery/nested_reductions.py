"""Losses in forward that reduce twice, or add means over different numbers of elements, as of VAEs."""
import torch
import torch.nn as nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(97)


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 4), nn.Linear(2, 6)

    def terms(self, x):
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        z = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        error = (self.decoder(z) - x).square()
        return error, -0.5 * (1 + log_variance - mean.square() - log_variance.exp())


class SumsOfSamples(Vae):
    def forward(self, x):
        error, divergence = self.terms(x)
        return error.sum(1).mean() + divergence.sum(1).mean()


class MeansOfElements(Vae):
    def forward(self, x):
        error, divergence = self.terms(x)
        return error.mean() + 0.1 * divergence.mean()


class MeansOfSamples(Vae):
    def forward(self, x):
        error, divergence = self.terms(x)
        return error.mean(0).sum() + divergence.mean(0).sum()


class SumOfMeans(Vae):
    def forward(self, x):
        error, divergence = self.terms(x)
        return 0.1 * (error.mean(1).sum() + divergence.mean(1).sum())


for kind in (SumsOfSamples, MeansOfElements, MeansOfSamples, SumOfMeans):
    model = kind()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for step in range(8):
        loss = model(torch.randn(17, 6))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        evaluated = model(torch.randn(17, 6))
    print(f"{kind.__name__} loss {loss.item():.10f} evaluated {evaluated.item():.10f}")
