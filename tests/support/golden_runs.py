"""Records of a training, as a golden run keeps them."""

import numpy as np

from samestep.verify.run_record import RunRecord
from samestep.verify.tensor_summary import BUCKETS
from samestep.verify.trace import Facts, OptimizerParameter, Step, Trace

SHAPES = ((32, 16), (32,), (10, 32), (10,))


def trained(*, steps=6, shapes=SHAPES, change=0.0, weights=0.0, workers=1, **facts):
    """Return the record of a training.

    Args:
        change: relative change of each gradient.
        weights: what is added to the first number of the first parameter at the beginning.
        workers: ranks among which the samples are dealt.
        facts: facts that differ from the usual.
    """
    draw = np.random.default_rng(3)
    numbers = BUCKETS * len(shapes)
    weight = draw.normal(size=numbers)
    weight[0] += weights
    of_ranks = [[] for _ in range(workers)]
    for index in range(steps):
        gradient = draw.normal(size=numbers) * (1 + change)
        after = weight - 0.1 * gradient
        samples = draw.normal(size=12)
        for rank, made in enumerate(of_ranks):
            made.append(
                Step(
                    index=index,
                    samples=samples[rank::workers].tolist(),
                    losses=[1 / (1 + index)],
                    divisors=[12.0 / workers],
                    learning_rates=[0.1],
                    weight_decays=[0.01],
                    gradient=gradient.tolist(),
                    gradient_norm=float(np.linalg.norm(gradient)),
                    before=weight.tolist(),
                    after=after.tolist(),
                    backwards=1,
                    printed=5 * (index + 1),
                )
            )
        weight = after
    kept = {
        "epsilon": 1e-7,
        "parameter_epsilon": 1e-7,
        "modules": {"0: ": "Sequential()", "0: 1": "Dropout(p=0.1, inplace=False)"},
        "optimizers": [[{"class": "SGD", "momentum": "0.9"}]],
        "dropouts": {"dropout": [0.1]},
        "parameters": [
            [OptimizerParameter(f"0: {number}", tuple(shape), 0) for number, shape in enumerate(shapes)]
        ],
        "printed": "0.50\n" * steps,
        "ended": "end",
        "group_size": workers,
    }
    return RunRecord(
        [Trace(Facts(rank=rank, **kept | facts), made, steps) for rank, made in enumerate(of_ranks)]
    )
