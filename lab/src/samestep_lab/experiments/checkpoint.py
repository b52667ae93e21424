"""Saves the weights of wrapped and unwrapped models, and loads each into the others."""

from collections.abc import Callable, Mapping
from functools import partial
from io import BytesIO
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from samestep.ranks.world.process_group import ProcessGroupWorld
from samestep.ranks.world.protocol import World
from samestep.training.checkpoint.scripts import load_weights
from samestep.training.networks import build
from samestep_lab.experiments.experiment import Outcome, Setup, Table

State = dict[str, Tensor]
Wrap = Callable[[nn.Module], Any]
Load = Callable[[Any, State], object]
LOADS: Mapping[str, Load] = {
    "torch": lambda model, state: model.load_state_dict(state),
    "samestep": lambda model, state: load_weights(state, model),
}


def network(seed: int) -> nn.Module:
    """Return the convnet with the weights of a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build("convnet", shape=(1, 8, 8), classes=10)


def on_rank(world: World) -> list[dict[str, Any]]:
    """Load each kind of checkpoint by torch and by `samestep.load_weights` into each kind of model."""
    is_process = isinstance(world, ProcessGroupWorld)
    data_parallel: Wrap = DistributedDataParallel if is_process else nn.DataParallel
    wraps: Mapping[str, Wrap] = {
        "bare": lambda model: model,
        "DDP" if is_process else "DataParallel": data_parallel,
        "compiled": partial(torch.compile, backend="eager"),  # the names are those of any compiler
    }
    combinations = []
    for saved_as, wrap in wraps.items():
        source = network(seed=1)
        file = BytesIO()
        torch.save(wrap(source).state_dict(), file)
        state: dict[str, Tensor] = torch.load(BytesIO(file.getvalue()), weights_only=True)
        for loaded_into, other_wrap in wraps.items():
            combinations.append(
                {
                    "saved_as": saved_as,
                    "first_key": next(iter(state)),
                    "loaded_into": loaded_into,
                    **{name: _loads(source, other_wrap, load, state) for name, load in LOADS.items()},
                }
            )
    return combinations


def _loads(source: nn.Module, wrap: Wrap, load: Load, state: State) -> bool:
    """Return whether `load` gives a wrapped model the weights of `source`."""
    target = network(seed=2)
    try:
        load(wrap(target), state)
    except RuntimeError:  # torch: missing and unexpected keys
        return False
    pairs = zip(source.state_dict().values(), target.state_dict().values(), strict=True)
    return all(torch.equal(weights, loaded) for weights, loaded in pairs)


def run(setup: Setup) -> Outcome:
    """Run the experiment."""
    combinations = setup.ranks(on_rank, setup.workers)[0]
    rows = [
        (
            *(combination[name] for name in ("saved_as", "first_key", "loaded_into")),
            *("equal bits" if combination[name] else "refused" for name in ("torch", "samestep")),
        )
        for combination in combinations
    ]
    head = ("saved as", "first key", "loaded into", "load_state_dict", "samestep.load_weights")
    counts = {name: sum(combination[name] for combination in combinations) for name in ("torch", "samestep")}
    return Outcome(
        tables=[Table(head=head, rows=rows)],
        measured=(
            f"torch's load_state_dict loads {counts['torch']} of {len(combinations)} combinations, "
            f"samestep.load_weights {counts['samestep']}."
        ),
        values={"combinations": combinations},
    )
