import torch
import torch.nn as nn
import torch.optim as optim


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 4))
        self.decoder = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 12))
        self.classifier = nn.Linear(4, 2)

    def forward(self, x):
        code = self.encoder(x)
        return self.decoder(code), self.classifier(code)


torch.manual_seed(1)
X = torch.rand(80, 12)
Y = (X.sum(1) > 6).long()
net = AutoEncoder()
params = list(net.encoder.parameters()) + list(net.decoder.parameters())
opt = optim.SGD(params, lr=0.05, momentum=0.9)
mse, ce = nn.MSELoss(), nn.CrossEntropyLoss()
for epoch in range(3):
    for i in range(0, len(X), 20):
        net.zero_grad()
        recon, logits = net(X[i:i + 20])
        loss = mse(recon, X[i:i + 20]) + ce(logits, Y[i:i + 20])
        loss.backward()
        opt.step()
    print("Epoch", epoch, "loss", round(loss.item(), 4))
