#!/usr/bin/env python
# coding: utf-8

# # Homework 3: a neural network for two spirals

# In[1]:


import math
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(7)
np.random.seed(7)


# In[2]:


N = 112
theta = np.sqrt(np.random.rand(N)) * 1.5 * math.pi
a = np.stack([np.cos(theta) * (2 * theta + 1), np.sin(theta) * (2 * theta + 1)], axis=1)
X = np.concatenate([a + np.random.randn(N, 2) * 0.3, -a + np.random.randn(N, 2) * 0.3]) / 8
y = np.concatenate([np.zeros(N), np.ones(N)])

X.shape, y.shape

idx = np.random.permutation(len(X))
X, y = X[idx], y[idx]
X_train, y_train = torch.from_numpy(X[:173]), torch.from_numpy(y[:173])
X_test, y_test = torch.from_numpy(X[173:]), torch.from_numpy(y[173:])
loader = DataLoader(TensorDataset(X_train, y_train), batch_size=17, shuffle=True)
loader_short = DataLoader(TensorDataset(X_train, y_train), batch_size=32, shuffle=True)


# In[3]:


net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
loss_fn = nn.BCEWithLogitsLoss()
optim = torch.optim.RMSprop(net.parameters(), lr=0.003)
net


# In[4]:


losses = []
accs = []

def test_accuracy():
    with torch.no_grad():
        guess = (net(X_test).squeeze(1) > 0).double()
    return (guess == y_test).double().mean().item()

test_accuracy()


# In[5]:


t0 = time.time()
for epoch in range(12):
    for xb, yb in loader:
        optim.zero_grad()
        out = net(xb).squeeze(1)
        loss = loss_fn(out, yb)
        loss.backward()
        optim.step()
        losses.append(loss.item())
    accs.append(test_accuracy())
    if epoch % 3 == 0:
        print('epoch %d loss %.10f acc %.10f' % (epoch, np.mean(losses[-10:]), accs[-1]))
print('wall time', round(time.time() - t0, 2))


# Still going down, so let's train some more with a bigger batch (and the last one is smaller!)

# In[6]:


for g in optim.param_groups:
    g['lr'] = 0.001

for epoch in range(6):
    for xb, yb in loader_short:
        optim.zero_grad()
        loss = loss_fn(net(xb)[:, 0], yb)
        loss.backward()
        optim.step()
        losses.append(loss.item())
    accs.append(test_accuracy())


# In[7]:


print('final loss %.10f' % losses[-1])
print('mean of the last 6 %.10f' % np.mean(losses[-6:]))
print('test accuracy %.10f' % accs[-1])
np.save('losses.npy', np.array(losses))
np.save('accs.npy', np.array(accs))
torch.save(net, 'net.pt')
