# research code: forward returns or keeps distributions, arrays, texts and closures, or fills what it is given
import torch
from torch import nn
from torch.distributions import Categorical, Normal

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Record:
    def __init__(self, hidden=None):
        self.hidden = hidden
        self.items = []


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.kept = None


class Returned(Base):  # only this one can be split: its object holds a row for each sample
    def forward(self, x):
        return Record(self.layer(x))


class Policy(Base):
    def forward(self, x):
        return Normal(self.layer(x), 1 + x[:, :2].abs())


class Remembered(Base):
    def forward(self, x):
        hidden = self.layer(x)
        self.kept = Categorical(logits=hidden)
        return hidden


class Lazy(Base):
    def forward(self, x):
        hidden = self.layer(x)
        return hidden, lambda: hidden.mean()


class Decoded(Base):
    def forward(self, x):
        hidden = self.layer(x)
        return hidden, [str(one) for one in hidden.argmax(1).tolist()], hidden.detach().numpy()


class IntoList(Base):
    def forward(self, x, taps):
        hidden = self.layer(x)
        taps.append(hidden)
        return hidden.tanh()


class IntoMethod(Base):
    def forward(self, x, keep):
        hidden = self.layer(x)
        keep(hidden)
        return hidden.tanh()


class IntoRecord(Base):
    def forward(self, x, record):
        hidden = self.layer(x)
        record.items.append(hidden)
        return hidden.tanh()


def returned(model, x):
    return model(x).hidden.pow(2).mean()


def policy(model, x):
    found = model(x)
    return found.mean.pow(2).mean() - found.entropy().mean()


def remembered(model, x):
    return model(x).pow(2).mean() - model.kept.entropy().mean()


def lazy(model, x):
    hidden, mean = model(x)
    return hidden.pow(2).mean() + mean()


def decoded(model, x):
    hidden, texts, array = model(x)
    print(" ".join(texts), f"{array.sum():.10f}")
    return hidden.pow(2).mean()


def into_list(model, x):
    taps = []
    return model(x, taps).pow(2).mean() + sum(one.pow(2).mean() for one in taps)


def into_method(model, x):
    record = Record()
    return model(x, record.items.append).pow(2).mean() + sum(one.pow(2).mean() for one in record.items)


def into_record(model, x):
    record = Record()
    return model(x, record).pow(2).mean() + sum(one.pow(2).mean() for one in record.items)


batches = [torch.randn(7, 3) for _ in range(4)]
for model, loss_of in [
    (Returned(), returned),
    (Policy(), policy),
    (Remembered(), remembered),
    (Lazy(), lazy),
    (Decoded(), decoded),
    (IntoList(), into_list),
    (IntoMethod(), into_method),
    (IntoRecord(), into_record),
]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in batches:
        loss = loss_of(model, x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{type(model).__name__} {loss.item():.10f}")
