"""Trains a small network on a GPU, as serial scripts for one GPU do: ``serial_script.py FEATURE``."""

import sys
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

STEPS = 12


def samples() -> TensorDataset:
    """Return the data set."""
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(STEPS * 16, 8, generator=generator)
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


def network() -> nn.Sequential:
    """Return the model."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 2))


def train(model: nn.Module, batches: Iterator[tuple[Tensor, Tensor]]) -> None:
    """Train with SGD, and print each loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for inputs, labels in batches:
        loss = cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        print(f"loss {loss.item():.8f}")


def cuda_method() -> None:
    """Move with ``.cuda()``."""
    model = network().cuda()
    train(model, ((inputs.cuda(), labels.cuda()) for inputs, labels in DataLoader(samples(), 16)))


def to_device() -> None:
    """Move with ``.to("cuda")`` and ``.to(device)``."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = network().to("cuda")
    data = TensorDataset(*(one.to(device) for one in samples().tensors))
    train(model, ((inputs.to(device), labels.to("cuda:0")) for inputs, labels in DataLoader(data, 16)))


def default_device() -> None:
    """Create everything on the default device."""
    data = samples()
    model = network()
    torch.set_default_device("cuda")
    weights = [torch.empty_like(one, device="cuda").copy_(one) for one in model.parameters()]
    own = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 2))
    with torch.no_grad():
        for mine, given in zip(own.parameters(), weights, strict=True):
            mine.copy_(given)
    inputs, labels = data.tensors
    batches = (torch.split(one.to("cuda"), 16) for one in (inputs, labels))
    train(own, zip(*batches, strict=True))


def pinned() -> None:
    """Load into pinned memory, and copy without waiting."""
    loader = DataLoader(samples(), 16, num_workers=2, pin_memory=True)
    model = network().cuda()
    train(model, ((a.cuda(non_blocking=True), b.to("cuda", non_blocking=True)) for a, b in loader))


def streams() -> None:
    """Copy the next batch in another stream, and time with events."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def prefetched() -> Iterator[tuple[Tensor, Tensor]]:
        for inputs, labels in DataLoader(samples(), 16):
            with torch.cuda.stream(side):
                moved = inputs.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True)
            torch.cuda.current_stream().wait_stream(side)
            yield moved

    model = network().cuda()
    begin.record()
    train(model, prefetched())
    end.record()
    torch.cuda.synchronize()
    assert begin.elapsed_time(end) >= 0


def autocast() -> None:
    """Compute in bfloat16 under autocast."""
    model = network().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, labels in DataLoader(samples(), 16):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            scores = model(inputs.cuda())
            loss = cross_entropy(scores, labels.cuda())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        print(f"loss {loss.item():.8f}")


def grad_scaler() -> None:
    """Scale the loss."""
    model = network().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    for inputs, labels in DataLoader(samples(), 16):
        loss = cross_entropy(model(inputs.cuda()), labels.cuda())
        optimizer.zero_grad()
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        print(f"loss {loss.item():.8f}")


class LastStep(nn.Module):
    """Drops a part of the last of several time steps."""

    def forward(self, steps: Tensor) -> Tensor:
        """Return the last step, which has gaps in its memory."""
        return nn.functional.dropout(steps.view(len(steps), 4, -1)[:, -1], 0.3, self.training)


def dropout() -> None:
    """Draw masks on the GPU."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.3), nn.Tanh(), LastStep(), nn.Linear(8, 2))
    train(model.cuda(), ((a.cuda(), b.cuda()) for a, b in DataLoader(samples(), 16)))


def compiled() -> None:
    """Compile the model."""
    model = network().cuda()
    compiled_model: nn.Module = torch.compile(model)  # type: ignore[assignment]
    train(compiled_model, ((a.cuda(), b.cuda()) for a, b in DataLoader(samples(), 16)))


def graphs() -> None:
    """Capture the model as a CUDA graph."""
    model = network().cuda()
    sample = torch.zeros(16, 8, device="cuda")
    graphed = torch.cuda.make_graphed_callables(model, (sample,))
    assert isinstance(graphed, nn.Module)
    train(graphed, ((a.cuda(), b.cuda()) for a, b in DataLoader(samples(), 16)))


FEATURES: dict[str, Callable[[], None]] = {
    "cuda-method": cuda_method,
    "to-device": to_device,
    "default-device": default_device,
    "pinned": pinned,
    "streams": streams,
    "autocast": autocast,
    "grad-scaler": grad_scaler,
    "dropout": dropout,
    "compile": compiled,
    "graphs": graphs,
}

if __name__ == "__main__":
    FEATURES[sys.argv[1]]()
