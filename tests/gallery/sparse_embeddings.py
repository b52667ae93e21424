"""Embeddings with sparse gradients, for optimizers that update only the rows that a batch has used."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
torch.manual_seed(89)


class SkipGram(nn.Module):
    """word2vec with negative samples; the loss is computed in forward."""

    def __init__(self):
        super().__init__()
        self.center = nn.Embedding(40, 6, sparse=True)
        self.context = nn.Embedding(40, 6, sparse=True)

    def forward(self, words, near, others):
        center = self.center(words)
        hit = F.logsigmoid((center * self.context(near)).sum(1))
        miss = F.logsigmoid(-(self.context(others) @ center.unsqueeze(2)).squeeze(2)).sum(1)
        return -(hit + miss).mean()


class Bags(nn.Module):
    """A bag of words, and a table whose weight is also the output layer: its gradient is dense."""

    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(40, 6, sparse=True, mode="sum")
        self.table = nn.Embedding(40, 6, sparse=True)

    def forward(self, words):
        return F.linear(self.bag(words) + self.table(words).mean(1), self.table.weight)


model = SkipGram()
optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=0.05)
for step in range(12):
    words, near, others = (torch.randint(0, 40, size) for size in ((11,), (11,), (11, 3)))
    loss = model(words, near, others)
    optimizer.zero_grad()
    loss.backward()
    if step % 2:  # two batches a step
        (model(near, words, others) / 2).backward()
    rows = model.center.weight.grad.coalesce().indices().shape[1]
    optimizer.step()
    print(f"step {step} loss {loss.item():.10f} rows {rows}")

model = Bags()
optimizers = [
    torch.optim.SGD([model.bag.weight], lr=0.3),
    torch.optim.Adagrad([model.table.weight], lr=0.1),
]
for step in range(8):
    words = torch.randint(0, 40, (11, 4))
    loss = F.cross_entropy(model(words), words[:, 0])
    for one in optimizers:
        one.zero_grad()
    loss.backward()
    for one in optimizers:
        one.step()
    layouts = model.bag.weight.grad.layout, model.table.weight.grad.layout
    print(f"step {step} loss {loss.item():.10f} {layouts}")
torch.save(model.state_dict(), "sparse.pt")
