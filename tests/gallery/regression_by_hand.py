import numpy as np
import torch
from torch import nn

np.random.seed(0)
torch.set_default_dtype(torch.float64)

# the data: a plane plus noise
n, d = 203, 5
true_w = np.random.randn(d)
X_np = np.random.randn(n, d)
y_np = X_np @ true_w + 4.2 + 0.1 * np.random.randn(n)

X = torch.from_numpy(X_np)
y = torch.from_numpy(y_np).reshape(-1, 1)

model = nn.Linear(d, 1)
with torch.no_grad():
    model.weight.copy_(torch.from_numpy(0.01 * np.random.randn(1, d)))
    model.bias.zero_()


def squared_loss(y_hat, y):
    return (y_hat - y) ** 2 / 2


lr = 0.05
batch_size = 10
num_epochs = 5
curve = []

for epoch in range(num_epochs):
    order = np.random.permutation(n)
    for start in range(0, n, batch_size):
        idx = order[start:start + batch_size]
        loss = squared_loss(model(X[idx]), y[idx]).mean()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= lr * p.grad
                p.grad.zero_()
        curve.append(loss.item())
    with torch.no_grad():
        train_l = squared_loss(model(X), y)
    print(f'epoch {epoch + 1}, loss {train_l.mean():.10f}')

w = model.weight.detach().numpy().ravel()
print('error of w:', ' '.join('%.10f' % e for e in w - true_w))
print('error of b: %.10f' % (model.bias.item() - 4.2))
np.savez('fit.npz', w=w, b=model.bias.detach().numpy(), curve=np.array(curve))
