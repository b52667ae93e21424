"""A batch sampler of its own: batches of similar length, dealt to the ranks row by row; padded in collate."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler


class Sequences(Dataset):
    def __init__(self, count):
        g = torch.Generator().manual_seed(0)
        lengths = torch.randint(3, 9, (count,), generator=g).tolist()
        self.items = [torch.randint(1, 20, (n,), generator=g) for n in lengths]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index], int(self.items[index].sum()) % 3


class BucketBatchSampler(Sampler):
    """Sorts by length, cuts into global batches, shuffles these; each rank takes its rows of each."""

    def __init__(self, dataset, batch_size, rank, world, seed=0):
        self.lengths = [len(tokens) for tokens, _ in dataset]
        self.batch_size, self.rank, self.world, self.seed, self.epoch = batch_size, rank, world, seed, 0

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed + self.epoch)
        noise = torch.rand(len(self.lengths), generator=g).tolist()
        order = sorted(range(len(self.lengths)), key=lambda i: self.lengths[i] + noise[i])
        batches = [order[i:i + self.batch_size] for i in range(0, len(order), self.batch_size)]
        for k in torch.randperm(len(batches), generator=g).tolist():
            yield batches[k][self.rank::self.world]

    def __len__(self):
        return len(self.lengths) // self.batch_size


def collate(items):
    tokens, labels = zip(*items)
    return pad_sequence(tokens, batch_first=True), torch.tensor(labels)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 16, padding_idx=0), nn.Linear(16, 3)

    def forward(self, tokens):
        return self.head(self.embedding(tokens).sum(1))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    data = Sequences(96)
    sampler = BucketBatchSampler(data, 12, rank, world)
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=collate)
    torch.manual_seed(0)
    model = DDP(Classifier())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(3):
        sampler.epoch = epoch
        total = torch.zeros(2)
        for tokens, labels in loader:
            loss = F.cross_entropy(model(tokens), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += torch.tensor([loss.item() * len(labels), len(labels)])
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch}: loss {total[0] / total[1]:.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
