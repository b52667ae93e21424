"""A record merges what ranks do together, and combines the samples and losses of all ranks."""

from dataclasses import replace

import numpy as np
import pytest

from samestep.verify.run_record import RunRecord, merged
from samestep.verify.trace import Facts, Step, Trace


def sampled(*samples, **how):
    traces = [
        Trace(Facts(rank=rank), [Step(index=0, samples=[float(one) for one in own])], 1)
        for rank, own in enumerate(samples)
    ]
    return RunRecord(traces, **how)


@pytest.mark.parametrize(
    ("samples", "how", "found"),
    [
        ([[1, 3], [2]], {}, [1, 2, 3]),
        ([[3, 1, 2]], {"runs_once": True, "workers": 2}, [1, 2, 3]),
    ],
    ids=["sharded", "serial script"],
)
def test_the_samples_of_a_step(samples, how, found):
    assert sampled(*samples, **how).samples(0).tolist() == found


def trace(rank, *steps, **facts):
    return Trace(Facts(rank=rank, group_size=2, **facts), [*steps], len(steps))


def run(*traces):
    return RunRecord([*traces], runs_once=False)


def batch(index=0, samples=(1.0, 2.0), printed=0):
    return Step(index=index, samples=[*samples], losses=[0.5], evaluated=[3.0], printed=printed)


def test_the_batch_of_a_tensor_parallel_group_counts_for_its_first_rank_only():
    both = [trace(rank, batch(), same_batch=[0, 1], evaluated=[4.0]) for rank in (0, 1)]
    seen = merged(run(*both))
    assert [len(one.samples) for one in seen.of_ranks(0)] == [2, 0]
    assert [len(one.losses) for one in seen.of_ranks(0)] == [1, 0]
    assert [len(one.facts.evaluated) for one in seen.traces] == [1, 0]


@pytest.mark.parametrize("groups", [([], []), ([0], [1])])
def test_equal_batches_of_ranks_in_no_common_group_count_for_each(groups):
    both = [trace(rank, batch(), same_batch=group) for rank, group in enumerate(groups)]
    assert [len(one.samples) for one in merged(run(*both)).of_ranks(0)] == [2, 2]


def test_other_samples_in_a_tensor_parallel_group_are_kept():
    seen = merged(
        run(trace(0, batch(), same_batch=[0, 1]), trace(1, batch(samples=[7.0]), same_batch=[0, 1]))
    )
    assert [one.samples for one in seen.of_ranks(0)] == [[1.0, 2.0], [7.0]]


@pytest.mark.parametrize(("own", "expected"), [("", "loss 1\n"), ("rank 0\n", "rank 0\n")])
def test_the_output_is_that_of_the_first_rank_that_prints(own, expected):
    last = trace(1, batch(printed=7), printed="loss 1\n")
    seen = merged(run(trace(0, batch(printed=len(own)), printed=own), last))
    assert (seen.facts.printed, seen.at(0).printed) == (expected, 7)


def averaged(*, begins_with):
    """Return a run whose ranks have other gradients and parameters after a step.

    Args:
        begins_with: given the parameters of the ranks after the step, returns those of each rank then.
    """
    random = np.random.default_rng(0)
    before = random.normal(size=16)
    gradients = random.normal(size=(2, 16))
    after = before - 0.1 * gradients
    traces = []
    for rank in (0, 1):
        start = begins_with(after)[rank].tolist()
        first = Step(
            index=0, before=before.tolist(), gradient=gradients[rank].tolist(), after=after[rank].tolist()
        )
        second = Step(index=1, before=start, gradient=[0.0] * 16, after=start)
        traces.append(trace(rank, first, second))
    return run(*traces), gradients, after


def test_parameters_that_are_averaged_after_a_step_make_the_step_of_the_mean_gradient():
    one, gradients, after = averaged(begins_with=lambda after: [after.mean(axis=0)] * 2)
    seen = merged(one)
    for step in seen.of_ranks(0):
        np.testing.assert_allclose(step.gradient, gradients.mean(axis=0))
        np.testing.assert_allclose(step.after, after.mean(axis=0))
        assert np.isnan(step.gradient_norm)


def test_parameters_that_are_not_averaged_stay_those_of_each_rank():
    one, gradients, _ = averaged(begins_with=lambda after: after)
    assert [step.gradient for step in merged(one).of_ranks(0)] == gradients.tolist()


def test_gradients_that_are_reduced_in_the_step_are_the_mean():
    one, gradients, after = averaged(begins_with=lambda after: [after[0]] * 2)
    reduced = [
        replace(each, steps=[replace(each.steps[0], after=after[0].tolist()), each.steps[1]])
        for each in one.traces
    ]
    seen = merged(run(*reduced))
    assert seen.reduces_in_step
    assert [step.after for step in seen.of_ranks(0)] == [after[0].tolist()] * 2
    for step in seen.of_ranks(0):
        np.testing.assert_allclose(step.gradient, gradients.mean(axis=0))


def test_a_step_that_changes_nothing_reduces_no_gradient():
    one, gradients, _ = averaged(begins_with=lambda after: [after[0]] * 2)
    still = [replace(each, steps=[replace(each.steps[0], after=each.steps[0].before)]) for each in one.traces]
    assert [step.gradient for step in merged(run(*still)).of_ranks(0)] == gradients.tolist()


def test_a_rank_that_shadows_a_step_keeps_it_empty():
    one, _, _ = averaged(begins_with=lambda after: [after.mean(axis=0)] * 2)
    shadow = replace(
        one.traces[1], steps=[replace(one.traces[1].steps[0], joined=True), one.traces[1].steps[1]]
    )
    assert merged(run(one.traces[0], shadow)).traces[1].steps[0] == shadow.steps[0]


def test_a_script_that_runs_once_and_one_worker_are_unchanged():
    alone = run(trace(0, batch(), same_batch=[0, 1]))
    once = RunRecord([trace(0, batch(), same_batch=[0, 1])], runs_once=True, workers=2)
    assert merged(alone) is alone
    assert merged(once) is once
