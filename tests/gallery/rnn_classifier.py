"""Is there a 'b' right after an 'a' anywhere? A GRU reads strings of different lengths."""
import random

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
random.seed(0)

VOCAB = {"<pad>": 0, "a": 1, "b": 2, "c": 3}


class Strings(Dataset):
    def __init__(self, n):
        self.items = []
        while len(self.items) < n:
            s = "".join(random.choice("abc") for _ in range(random.randint(2, 9)))
            label = int("ab" in s)
            if label == len(self.items) % 2:
                self.items.append((s, label))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, idx):
        text, label = self.items[idx]
        return torch.tensor([VOCAB[ch] for ch in text]), label


def collate_fn(batch):
    seqs, labels = zip(*batch)
    lengths = torch.tensor([len(s) for s in seqs])
    return pad_sequence(seqs, batch_first=True, padding_value=0), lengths, torch.tensor(labels)


class GRUClassifier(nn.Module):
    def __init__(self, vocab_size, embed_dim=8, hidden_dim=24, num_classes=2):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embed_dim, padding_idx=0)
        self.gru = nn.GRU(embed_dim, hidden_dim, batch_first=True)
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(hidden_dim, num_classes)

    def forward(self, x, lengths):
        out, h = self.gru(self.embedding(x))  # out: (B, T, H), h: (1, B, H)
        last = (lengths - 1).view(-1, 1, 1).expand(-1, 1, out.size(2))
        out = out.gather(1, last).squeeze(1)
        return self.fc(self.dropout(out)), h


train_loader = DataLoader(Strings(215), batch_size=32, shuffle=True, collate_fn=collate_fn)
test_loader = DataLoader(Strings(70), batch_size=32, shuffle=False, collate_fn=collate_fn)
model = GRUClassifier(len(VOCAB))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)

num_epochs = 8
for epoch in range(num_epochs):
    model.train()
    epoch_loss, epoch_acc, state_norm = 0, 0, 0
    for x, lengths, y in train_loader:
        optimizer.zero_grad()
        logits, h = model(x, lengths)
        loss = criterion(logits, y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5)
        optimizer.step()
        epoch_loss += loss.item() * len(y)
        epoch_acc += (logits.argmax(dim=1) == y).sum().item()
        state_norm += h.detach().norm(dim=-1).mean().item()
    n = len(train_loader.dataset)
    print(f"Epoch {epoch + 1:02}/{num_epochs}: loss={epoch_loss / n:.10f} acc={epoch_acc / n:.10f} "
          f"|h|={state_norm / len(train_loader):.10f}")

model.eval()
test_acc = 0
with torch.no_grad():
    for x, lengths, y in test_loader:
        logits, _ = model(x, lengths=lengths)
        test_acc += (logits.argmax(dim=1) == y).sum().item()
print(f"Test accuracy: {test_acc / len(test_loader.dataset):.10f}")
torch.save(model.state_dict(), "gru.pth")
