import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
torch.manual_seed(1111)

PAD, ntokens = 0, 30
emsize, nhid, nlayers, dropout = 16, 24, 2, 0.2
bptt, batch_size, eval_batch_size = 12, 17, 10
clip, lr, epochs, log_interval = 0.25, 5.0, 3, 3


class RNNModel(nn.Module):
    def __init__(self):
        super(RNNModel, self).__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(ntokens, emsize, padding_idx=PAD)
        self.rnn = nn.LSTM(emsize, nhid, nlayers, dropout=dropout)
        self.decoder = nn.Linear(nhid, ntokens)

    def forward(self, input, hidden):
        emb = self.drop(self.encoder(input))
        output, hidden = self.rnn(emb, hidden)
        decoded = self.decoder(self.drop(output))
        return F.log_softmax(decoded.view(-1, ntokens), dim=1), hidden

    def init_hidden(self, bsz):
        return tuple(next(self.parameters()).new_zeros(nlayers, bsz, nhid) for _ in range(2))


def babble(n):
    successors = torch.randint(1, ntokens, (ntokens, 3), generator=torch.Generator().manual_seed(4))
    tokens, now = [], 1
    for choice in torch.randint(3, (n,)).tolist():
        now = int(successors[now, choice])
        tokens.append(now)
    return torch.tensor(tokens)


def batchify(data, bsz):
    """Starting from sequential data, arrange it into columns, and pad the last one."""
    nbatch = math.ceil(data.size(0) / bsz)
    data = F.pad(data, (0, nbatch * bsz - data.size(0)), value=PAD)
    return data.view(bsz, -1).t().contiguous()


def repackage_hidden(h):
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(repackage_hidden(v) for v in h)


def get_batch(source, i):
    seq_len = min(bptt, len(source) - 1 - i)
    return source[i:i + seq_len], source[i + 1:i + 1 + seq_len].view(-1)


train_data = batchify(babble(2023), batch_size)
val_data = batchify(babble(511), eval_batch_size)
model = RNNModel()
criterion = nn.NLLLoss(ignore_index=PAD)


def evaluate(data_source):
    model.eval()
    total_loss, hidden = 0., model.init_hidden(eval_batch_size)
    with torch.no_grad():
        for i in range(0, data_source.size(0) - 1, bptt):
            data, targets = get_batch(data_source, i)
            output, hidden = model(data, hidden)
            total_loss += len(data) * criterion(output, targets).item()
    return total_loss / (len(data_source) - 1)


def train(epoch):
    model.train()
    total_loss, hidden = 0., model.init_hidden(batch_size)
    for batch, i in enumerate(range(0, train_data.size(0) - 1, bptt)):
        data, targets = get_batch(train_data, i)
        model.zero_grad()
        hidden = repackage_hidden(hidden)
        output, hidden = model(data, hidden)
        loss = criterion(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)
        total_loss += loss.item()
        if batch % log_interval == 0 and batch > 0:
            cur_loss = total_loss / log_interval
            print(f'| epoch {epoch} | {batch:2d} batches | loss {cur_loss:.10f} | ppl {math.exp(cur_loss):.10f}')
            total_loss = 0


best_val_loss = None
for epoch in range(1, epochs + 1):
    epoch_start_time = time.time()
    train(epoch)
    val_loss = evaluate(val_data)
    print(f'| end of epoch {epoch} | valid loss {val_loss:.10f} | valid ppl {math.exp(val_loss):.10f}')
    print(f'| time: {time.time() - epoch_start_time:5.2f}s')
    if not best_val_loss or val_loss < best_val_loss:
        torch.save(model.state_dict(), 'model.pt')
        best_val_loss = val_loss
    else:
        lr /= 4.0
