import copy
import time

import numpy as np
import torch
import torch.nn as nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(8)
rng = np.random.default_rng(8)


def friedman(n, noise):
    x = rng.uniform(size=(n, 5))
    y = (np.sin(np.pi * x[:, 0] * x[:, 1]) + 2 * (x[:, 2] - 0.5) ** 2 + x[:, 3] + 0.5 * x[:, 4])
    return torch.tensor(x), torch.tensor(y + noise * rng.normal(size=n)).unsqueeze(1)


train_x, train_y = friedman(203, 0.15)
val_x, val_y = friedman(59, 0.15)
train_loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(train_x, train_y), batch_size=50, shuffle=True)


class EarlyStopping:
    def __init__(self, patience, min_delta=1e-5):
        self.patience, self.min_delta = patience, min_delta
        self.best, self.bad, self.state = None, 0, None

    def __call__(self, value, model):
        if self.best is None or value < self.best - self.min_delta:
            self.best, self.bad = value, 0
            self.state = copy.deepcopy(model.state_dict())
        else:
            self.bad += 1
        return self.bad >= self.patience


model = nn.Sequential(nn.Linear(5, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))
loss_fn = nn.MSELoss()
t_start = time.time()

# Phase one: get the training loss below the threshold, however long it takes (but not forever)
THRESHOLD, MAX_STEPS = 0.05, 400
optimizer = torch.optim.Adam(model.parameters(), lr=0.004)
step = 0
while True:
    for x, y in train_loader:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        step += 1
        if step % 5 == 0:
            print("step", step, "loss {:.10f}".format(loss.item()))
        if loss.item() < THRESHOLD or step >= MAX_STEPS:
            break
    if loss < THRESHOLD or step >= MAX_STEPS:
        break
print("phase one: {} steps, loss {:.10f}".format(step, loss.item()))

# Phase two: early stopping on the validation loss
stopper = EarlyStopping(patience=4)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
for epoch in range(60):
    model.train()
    for x, y in train_loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        val_loss = loss_fn(model(val_x), val_y).item()
    print("epoch {:2d} val loss {:.10f}".format(epoch, val_loss))
    if stopper(val_loss, model):
        print("Early stopping after epoch", epoch)
        break

model.load_state_dict(stopper.state)
with torch.no_grad():
    print("restored: val loss {:.10f}".format(loss_fn(model(val_x), val_y).item()))
torch.save(model.state_dict(), "best_weights.pt")
print("total time %.2f" % (time.time() - t_start))
