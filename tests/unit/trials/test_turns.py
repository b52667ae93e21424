"""The order of the runs favours nobody."""

from samestep.trials.turns import in_turns


def test_each_case_has_a_turn_in_each_round():
    turns = in_turns([1, 2, 4, 8], rounds=3, seed=5)

    assert [number for number, _ in turns] == [0] * 4 + [1] * 4 + [2] * 4
    assert all(sorted(case for at, case in turns if at == number) == [1, 2, 4, 8] for number in range(3))


def test_a_drift_meets_all_cases_alike_over_two_rounds():
    for seed in range(20):
        positions = dict.fromkeys("abcde", 0)
        for at, (_, case) in enumerate(in_turns(list(positions), rounds=2, seed=seed)):
            positions[case] += at
        assert len(set(positions.values())) == 1


def test_the_seed_decides_the_order():
    orders = {tuple(in_turns([1, 2, 4, 8], rounds=1, seed=seed)) for seed in range(20)}

    assert in_turns([1, 2, 4, 8], rounds=4, seed=3) == in_turns([1, 2, 4, 8], rounds=4, seed=3)
    assert len(orders) > 5
