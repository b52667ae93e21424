"""The order of runs is interleaved, so that a drift affects all configurations equally."""

from samestep.scaling.sweep.plan import interleaved


def test_each_configuration_runs_once_in_each_round():
    order = interleaved([1, 2, 4, 8], rounds=3, seed=5)

    assert [number for number, _ in order] == [0] * 4 + [1] * 4 + [2] * 4
    assert all(sorted(case for at, case in order if at == number) == [1, 2, 4, 8] for number in range(3))


def test_a_drift_averages_out_over_two_rounds():
    for seed in range(20):
        positions = dict.fromkeys("abcde", 0)
        for at, (_, case) in enumerate(interleaved(list(positions), rounds=2, seed=seed)):
            positions[case] += at
        assert len(set(positions.values())) == 1


def test_the_seed_decides_the_order():
    orders = {tuple(interleaved([1, 2, 4, 8], rounds=1, seed=seed)) for seed in range(20)}

    assert interleaved([1, 2, 4, 8], rounds=4, seed=3) == interleaved([1, 2, 4, 8], rounds=4, seed=3)
    assert len(orders) > 5
