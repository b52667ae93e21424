"""Each cause of a resumed run is found in a record with that fault, and in no other."""

from dataclasses import replace

import numpy as np
import pytest

from samestep.verify.resumed_run import Resumption, resumed_causes, with_optimizers_of
from samestep.verify.run_record import RunRecord
from samestep.verify.trace import Facts, OptimizerParameter, Step, Trace

EPOCH, EPOCHS, BATCH = 4, 3, 3
ENDED_AFTER, RESUMED_AT = 7, 6
"""The run is ended after step 6, within its second epoch, and its last checkpoint is that before step 6."""


def samples_of(step):
    epoch, place = divmod(step, EPOCH)
    order = np.random.default_rng(epoch).permutation(EPOCH * BATCH)
    return order[place * BATCH : (place + 1) * BATCH].astype(float).tolist()


def step_of(index, **changed):
    draw = np.random.default_rng([5, index])
    gradient, weight = draw.normal(size=16), np.random.default_rng(6).normal(size=16)
    usual = Step(
        index=index,
        samples=samples_of(index),
        passes=index // EPOCH,
        losses=[float(1 + draw.random())],
        learning_rates=[0.1 * 0.9**index],
        gradient=gradient.tolist(),
        gradient_norm=float(np.linalg.norm(gradient)),
        before=(weight + index).tolist(),
        after=(weight + index + 1 - 0.1 * gradient).tolist(),
        backwards=1,
        stream=100 + index,
    )
    return replace(usual, **changed)


def recorded(steps, *, ended="end", printed="", **facts):
    known = Facts(rank=0, epsilon=1e-16, parameter_epsilon=1e-16, ended=ended, printed=printed, **facts)
    return RunRecord([Trace(known, [replace(step, index=k) for k, step in enumerate(steps)], len(steps))])


USUAL = [step_of(index) for index in range(EPOCH * EPOCHS)]


def codes(resumed, *, usual=None, **facts):
    reference = recorded(usual or USUAL, **facts)
    run = recorded(resumed, **facts)
    resumption = Resumption(
        replace(reference, origin="uninterrupted"), run, reference, ended_after=ENDED_AFTER
    )
    return [finding.cause for finding in resumed_causes(resumption)]


def resumed(change=lambda index: {}, begin=RESUMED_AT, stop=EPOCH * EPOCHS):
    """Return the steps of a resumed run, whose passes count from 0, changed by the step's number."""
    first = begin // EPOCH
    return [step_of(k, passes=k // EPOCH - first, **change(k)) for k in range(begin, stop)]


def with_samples_of(number):
    return lambda index: {"samples": samples_of(number(index))}


def reversed_epoch(index):
    """Return the step of the epoch whose place counts from the end of what is left."""
    return RESUMED_AT + EPOCH * 2 - 1 - index if index < EPOCH * 2 else index


@pytest.mark.parametrize("begin", [3, 4, RESUMED_AT, ENDED_AFTER])
def test_a_run_that_goes_on_is_the_same(begin):
    assert codes(resumed(begin=begin)) == []


FAULTS = {
    "two batches are left out": (with_samples_of(lambda k: min(k + 2, 11)), "resumed-skips"),
    "the rest of the epoch is reversed": (with_samples_of(reversed_epoch), "resumed-other-order"),
    "a later epoch has another order": (
        with_samples_of(lambda k: 19 - k if k >= EPOCH * 2 else k),
        "resumed-other-order",
    ),
    "the schedule is a step ahead": (lambda k: {"learning_rates": [0.1 * 0.9 ** (k + 1)]}, "resumed-rate"),
    "momentum is lost": (lambda k: {"after": np.zeros(16).tolist()}, "resumed-optimizer"),
    "dropout draws other numbers": (lambda k: {"losses": [9.0], "stream": 7}, "resumed-draws"),
    "the loss has another scale": (lambda k: {"losses": [9.0]}, "loss-only"),
    "steps are skipped": (
        lambda k: {"samples": samples_of(k) + samples_of(k + 1), "backwards": 2},
        "resumed-optimizer",
    ),
}


@pytest.mark.parametrize(("change", "code"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_named(change, code):
    assert codes(resumed(change)) == [code]


def test_an_epoch_that_begins_again_repeats_samples():
    begin = EPOCH
    again = [
        step_of(RESUMED_AT + k, samples=samples_of(begin + k), passes=k // EPOCH) for k in range(EPOCH * 2)
    ]
    assert codes(again) == ["resumed-repeats"]


def test_weights_of_no_step_are_named():
    assert codes(resumed(lambda k: {"before": np.ones(16).tolist()}))[0] == "resumed-weights"


def test_a_run_that_begins_again_has_not_resumed():
    assert codes(USUAL) == ["not-resumed"]


@pytest.mark.parametrize(
    "steps",
    [[], resumed(stop=9), resumed(begin=4, change=lambda k: {"samples": samples_of(k + 4)}, stop=8)],
    ids=["no step", "end", "a whole epoch"],
)
def test_a_run_that_ends_early_without_an_error_is_short(steps):
    assert codes(steps) == ["resumed-short"]


def test_a_run_that_goes_on_after_the_end_has_another_number_of_steps():
    assert codes(resumed(stop=14)) == ["number-of-steps"]


def test_noise_of_a_data_set_is_a_draw_and_no_order():
    noisy = [replace(step, samples=[100.0 * step.index + k for k in range(BATCH)]) for step in USUAL]
    changed = resumed(lambda k: {"samples": [1e6 + 100.0 * k, 2e6 + 100.0 * k]})
    assert codes(changed, usual=noisy) == ["resumed-draws"]


@pytest.mark.parametrize(
    ("begin", "printed", "expected"),
    [
        (RESUMED_AT, ["0.40", "0.52"], [("printed", "exception")]),
        (RESUMED_AT, ["0.51", "0.99"], [("printed", "exception")]),  # like a summary: nothing is before it
        (2, ["0.50", "0.99", "0.52"], [("printed", "fault")]),
        (EPOCH, ["0.40", "0.52"], [("printed", "fault")]),
        (RESUMED_AT, ["0.51", "0.52"], []),
    ],
)
def test_a_printed_result_that_differs_is_a_fault_but_in_the_epoch_that_was_resumed_amid(
    begin, printed, expected
):
    def printing(numbers, steps):
        lines = [f"accuracy {number}\n" for number in numbers]
        first = steps[0].passes
        made = [replace(step, printed=len("".join(lines[: step.passes - first]))) for step in steps]
        return recorded(made, printed="".join(lines))

    reference = replace(printing(["0.50", "0.51", "0.52"], USUAL), origin="uninterrupted")
    run = printing(printed, resumed(begin=begin))
    findings = resumed_causes(Resumption(reference, run, reference, ENDED_AFTER))
    assert [(finding.cause, finding.kind) for finding in findings] == expected


def test_optimizers_that_a_resumed_run_does_not_step_keep_their_number():
    """A script of two phases resumes in the second one, whose optimizer is the first that it steps."""
    parameters = [[OptimizerParameter("0: a", (3,), 0)], [OptimizerParameter("0: b", (4,), 0)]]
    usual = recorded(USUAL, parameters=parameters)
    run = with_optimizers_of(usual, recorded(resumed(), parameters=parameters[1:]))
    assert {step.optimizer for step in run.traces[0].steps} == {1}
    assert run.facts.parameters == parameters


def test_groups_of_other_numbers_have_another_rate():
    changed = resumed(lambda k: {"learning_rates": [0.1 * 0.9**k, 0.5]})
    usual = [replace(step, learning_rates=[*step.learning_rates, 0.4]) for step in USUAL[:9]] + [
        replace(step, learning_rates=[*step.learning_rates, 0.4, 0.3]) for step in USUAL[9:]
    ]
    assert codes(changed, usual=usual) == ["resumed-rate"]


def test_a_summary_at_the_end_can_be_a_mean_over_the_steps_of_one_process():
    def printing(mean, steps):
        made = [replace(step, printed=len("accuracy 0.50\n")) for step in steps]
        return recorded(made, printed=f"accuracy 0.50\nmean loss {mean}\n")

    reference = replace(printing("1.34", USUAL), origin="uninterrupted")
    findings = resumed_causes(
        Resumption(reference, printing("1.31", resumed(begin=EPOCH)), reference, ENDED_AFTER)
    )
    assert [(finding.cause, finding.kind) for finding in findings] == [("printed", "exception")]


@pytest.mark.parametrize("fault", FAULTS)
def test_the_step_of_a_fault_is_counted_from_the_beginning_of_the_training(fault):
    reference = replace(recorded(USUAL), origin="uninterrupted")
    resumption = Resumption(reference, recorded(resumed(FAULTS[fault][0])), recorded(USUAL), ENDED_AFTER)
    (finding,) = resumed_causes(resumption)
    assert finding.step == (2 * EPOCH if "later epoch" in fault else RESUMED_AT)


def test_ranks_that_part_are_a_fault_beside_batch_norm_of_each_rank():
    """As where rank 0 alone restores the state of the optimizer; batch norm changes all values besides."""

    def of_rank(rank, after):
        def changed(k):
            return {"samples": samples_of(k)[rank::2], "gradient": [1.0 + k] * 16, "after": [after] * 16}

        trace = recorded(resumed(changed), batch_norm=True).traces[0]
        return replace(trace, facts=replace(trace.facts, rank=rank))

    def found(after):
        run = RunRecord([of_rank(0, 2.0), of_rank(1, after)])
        reference = replace(recorded(USUAL), origin="uninterrupted")
        findings = resumed_causes(Resumption(reference, run, recorded(USUAL), ENDED_AFTER))
        return [(finding.cause, finding.kind, finding.step) for finding in findings]

    exception = ("batch-norm-local", "exception", None)
    assert found(2.0) == [exception]
    assert found(3.0) == [("replicas-diverge", "fault", RESUMED_AT), exception]
