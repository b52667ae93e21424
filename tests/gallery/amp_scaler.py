import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)

use_amp = False
device = "cpu"
epochs = 5
batch_size = 23


class Block(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv1d(cin, cout, 5, stride=2, padding=2)
        self.norm = nn.GroupNorm(2, cout)

    def forward(self, x):
        return F.silu(self.norm(self.conv(x)))


def make_model():
    return nn.Sequential(Block(2, 8), Block(8, 16), nn.AdaptiveAvgPool1d(2), nn.Flatten(), nn.Linear(32, 5))


def make_signals(n, generator):
    freq = torch.randint(5, (n,), generator=generator)
    t = torch.linspace(0, 6.2832, 40)
    phase = 6.2832 * torch.rand(n, 1, generator=generator)
    wave = (freq[:, None] + 1) * t + phase
    x = torch.stack([wave.sin(), wave.cos()], dim=1)
    return TensorDataset(x + 0.8 * torch.randn(x.shape, generator=generator), freq)


def start_timer():
    global start_time
    start_time = time.time()


def end_timer_and_print(local_msg):
    print("\n" + local_msg)
    print("Total execution time = {:.3f} sec".format(time.time() - start_time))


torch.manual_seed(0)
gen = torch.Generator()
gen.manual_seed(5)
train_data = DataLoader(make_signals(201, gen), batch_size=batch_size, shuffle=True, generator=gen)
test_data = DataLoader(make_signals(88, gen), batch_size=batch_size)

net = make_model().to(device)
loss_fn = nn.CrossEntropyLoss(label_smoothing=0.1).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True)
scaler = torch.amp.GradScaler("cpu", enabled=use_amp)

start_timer()
for epoch in range(epochs):
    net.train()
    for step, (input, target) in enumerate(train_data):
        with torch.autocast(device_type=device, dtype=torch.bfloat16, enabled=use_amp):
            output = net(input.to(device))
            loss = loss_fn(output, target.to(device))
        scaler.scale(loss).backward()

        # Unscales the gradients of the optimizer's parameters in-place
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm=0.5)

        scaler.step(opt)
        scaler.update()
        opt.zero_grad(set_to_none=True)
        if step % 4 == 0:
            print("epoch {} step {} loss {:.10f} scale {}".format(epoch, step, loss.item(), scaler.get_scale()))

    net.eval()
    hits = 0
    with torch.inference_mode():
        for input, target in test_data:
            with torch.autocast(device_type=device, dtype=torch.bfloat16, enabled=use_amp):
                hits += (net(input).argmax(-1) == target).sum()
    print("epoch {} test accuracy {:.10f}".format(epoch, hits.item() / len(test_data.dataset)))
end_timer_and_print("Default precision:" if not use_amp else "Mixed precision:")

checkpoint = {"model": net.state_dict(), "optimizer": opt.state_dict(), "scaler": scaler.state_dict()}
torch.save(checkpoint, "amp.pt")
