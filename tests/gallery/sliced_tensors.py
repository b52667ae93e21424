import time

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
torch.manual_seed(17)

n, bs, epochs = 243, 50, 8

# Letters of 5x5 pixels with some pixels flipped
letters = ["01110" "10001" "11111" "10001" "10001",
           "11110" "10001" "11110" "10001" "11110",
           "01111" "10000" "10000" "10000" "01111",
           "11110" "10001" "10001" "10001" "11110",
           "11111" "10000" "11110" "10000" "11111"]
glyphs = torch.tensor([[float(c) for c in s] for s in letters])
Y = torch.randint(len(letters), (n + 90,))
X = glyphs[Y]
flip = torch.rand(X.shape) < 0.12
X = torch.where(flip, 1 - X, X)
X = (X - X.mean(0)) / X.std(0)
X, Xte, Y, Yte = X[:n], X[n:], Y[:n], Y[n:]


class MLP(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for a, b in zip(sizes[:-1], sizes[1:]):
            self.weights.append(nn.Parameter(torch.randn(a, b) / a ** 0.5))
            self.biases.append(nn.Parameter(torch.zeros(b)))

    def forward(self, x):
        for k, (w, b) in enumerate(zip(self.weights, self.biases)):
            x = x @ w + b
            if k < len(self.weights) - 1:
                x = F.relu(x)
        return x


net = MLP([25, 40, 20, 5])
opt = torch.optim.Adagrad(net.parameters(), lr=0.05)
t = time.time()
for epoch in range(epochs):
    perm = torch.randperm(n)
    tot, err = 0.0, 0
    for i in range(0, n, bs):
        ix = perm[i:i + bs]
        xb, yb = X[ix], Y[ix]
        out = net(xb)
        loss = F.cross_entropy(out, yb) + 1e-3 * sum(w.abs().sum() for w in net.weights)
        opt.zero_grad()
        loss.backward()
        opt.step()
        tot += loss.detach() * len(xb)
        err += (out.argmax(1) != yb).sum()
    with torch.no_grad():
        te = F.cross_entropy(net(Xte), Yte)
        te_err = (net(Xte).argmax(1) != Yte).double().mean()
    print("%2d  train %.10f  err %.10f  test %.10f  err %.10f" % (epoch, tot / n, err / n, te, te_err))

print("%.1f seconds" % (time.time() - t))
zeros = sum((w.abs() < 1e-2).sum().item() for w in net.weights)
print("small weights:", zeros)
torch.save(net.state_dict(), "net.pt")
