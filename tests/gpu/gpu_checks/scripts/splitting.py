"""Trains small models, each with something that a split call has to treat: ``splitting.py FEATURE``."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.backends.cudnn.allow_tf32 = False
STEPS, SAMPLES = 6, 12


class Mlp(nn.Module):
    """Two layers; subclasses change the forward."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


class Weighted(Mlp):
    def forward(self, x, labels):
        weights = torch.tensor([0.2, 1.0, 3.0], device=x.device)
        return F.cross_entropy(super().forward(x), labels, weights, ignore_index=-100)


class MaskedMean(Mlp):
    def forward(self, x, mask):
        squares = super().forward(x).square().mean(1)
        return (squares * mask).sum() / mask.sum()


class TimeFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.head = nn.GRU(6, 16, bidirectional=True), nn.Linear(32, 3)

    def forward(self, x):
        return self.head(self.gru(x)[0].mean(0))


class Packed(TimeFirst):
    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        outputs, _ = pad_packed_sequence(self.gru(packed)[0], batch_first=True)
        return self.head(outputs.sum(1) / lengths.to(x.device).unsqueeze(1))


class OfList(Mlp):
    def forward(self, parts):
        return torch.stack([super(OfList, self).forward(one).mean(0) for one in parts])


class Noisy(Mlp):
    def forward(self, x):
        noise = torch.randn_like(x) * 0.1
        kept = torch.bernoulli(torch.full_like(x, 0.9))
        return super().forward((x + noise) * kept)


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(30, 8, sparse=True), nn.Linear(8, 3)

    def forward(self, ids):
        return self.head(self.table(ids).mean(1))


class Checkpointed(Mlp):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2))

    def forward(self, x):
        hidden = checkpoint(self.inner, torch.tanh(self.first(x)), use_reentrant=False)
        return self.second(hidden)


class Keeping(Mlp):
    def forward(self, x):
        self.hidden = torch.tanh(self.first(x))
        return self.second(self.hidden)


class Switched(Mlp):
    """Subtracts the mean of the batch from a step on: the switch is a number of the device."""

    def __init__(self, dtype, *, is_buffer):
        super().__init__()
        switch = torch.zeros(1, dtype=dtype, device=device)
        if is_buffer:
            self.register_buffer("switch", switch)
        else:
            self.switch = switch

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        return self.second(hidden - hidden.mean(0) if self.switch else hidden)


def samples(count=SAMPLES, *shape):
    return torch.randn(count, *(shape or (6,))).to(device)


def labels(count=SAMPLES):
    return torch.randint(3, (count,)).to(device)


def train(model, loss_of, optimizer=None):
    """Train for some steps with the losses of `loss_of`, which draws its batch."""
    model = model.to(device)
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item():.6f}")


def uneven(model, step):
    count = (13, 7, 12, 3, 13, 1)[step]
    return F.cross_entropy(model(samples(count)), labels(count))


def weighted(model, _):
    return model(samples(), torch.tensor([0, 1, 2, -100, 1, -100, -100, 0, 0, 2, 1, 0], device=device))


def masked(model, step):
    mask = (torch.arange(SAMPLES, device=device) % 3 < 1 + step % 2).float()
    return model(samples(), mask)


def time_first(model, _):
    return F.cross_entropy(model(samples(5, SAMPLES, 6)), labels())


def packed(model, _):
    lengths = torch.randint(1, 8, (SAMPLES,))
    lengths[3] = 7
    return F.cross_entropy(model(samples(SAMPLES, 7, 6), lengths), labels())


def of_list(model, _):
    parts = [samples(size) for size in torch.randint(1, 5, (SAMPLES,)).tolist()]
    return F.cross_entropy(model(parts), labels())


def keeping(model, _):
    scores = model(samples())
    return F.cross_entropy(scores, labels()) + 0.1 * model.hidden.square().mean()


def input_gradient(model, _):
    x = samples().requires_grad_()
    scores = model(x)
    (slopes,) = torch.autograd.grad(scores.sum(), x, create_graph=True)
    return F.cross_entropy(scores, labels()) + slopes.square().sum(1).mean()


def plain(model, _):
    return F.cross_entropy(model(samples()), labels())


def switched(model, step):
    if step == STEPS // 2:
        model.switch.data.fill_(1)  # as quantizers do, which counts no version
    return plain(model, step)


def accumulation():
    model = Mlp().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for step in range(2 * STEPS):
        loss = plain(model, step) / 2
        loss.backward()
        print(f"loss {loss.item():.6f}")
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()


def closure():
    model, x, y = Mlp().to(device), samples(48), labels(48)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3)

    def loss_of():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    for _ in range(STEPS):
        print(f"loss {optimizer.step(loss_of).item():.6f}")


def sparse():
    model = Sparse().to(device)
    of_table = torch.optim.SparseAdam(model.table.parameters(), lr=0.01)
    of_head = torch.optim.Adam(model.head.parameters(), lr=0.01)
    for _ in range(STEPS):
        ids = torch.randint(30, (SAMPLES, 4)).to(device)
        loss = F.cross_entropy(model(ids), labels())
        model.zero_grad()
        loss.backward()
        of_table.step()
        of_head.step()
        print(f"loss {loss.item():.6f}")


def beside_cpu():
    """Train a model on the CPU and one on the device, whose gradients have equal shapes."""
    models = [Mlp(), Mlp().to(device)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for _ in range(STEPS):
        x, y = torch.randn(SAMPLES, 6), torch.randint(3, (SAMPLES,))
        for model, optimizer, where in zip(models, optimizers, ("cpu", device), strict=True):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x.to(where)), y.to(where))
            loss.backward()
            optimizer.step()
            print(f"loss {loss.item():.6f}")


FEATURES = {
    "uneven": lambda: train(Mlp(), uneven),
    "weighted-loss": lambda: train(Weighted(), weighted),
    "masked-mean": lambda: train(MaskedMean(), masked),
    "time-first": lambda: train(TimeFirst(), time_first),
    "packed": lambda: train(Packed(), packed),
    "sample-list": lambda: train(OfList(), of_list),
    "noise": lambda: train(Noisy(), plain),
    "sparse": sparse,
    "checkpoint": lambda: train(Checkpointed(), plain),
    "accumulation": accumulation,
    "attributes": lambda: train(Keeping(), keeping),
    "input-gradient": lambda: train(Mlp(), input_gradient),
    "closure": closure,
    "beside-cpu": beside_cpu,
    "switched": lambda: train(Switched(torch.float32, is_buffer=False), switched),
    "switched-buffer": lambda: train(Switched(torch.int64, is_buffer=True), switched),
}

if __name__ == "__main__":
    torch.manual_seed(9)
    FEATURES[sys.argv[1]]()
