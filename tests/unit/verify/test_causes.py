"""Each cause is found in the record of a run with that fault, and in no other."""

from dataclasses import replace
from functools import reduce
from itertools import combinations

import numpy as np
import pytest

from samestep.launch.local.failure import Failure
from samestep.verify.causes import causes
from samestep.verify.compare import FAULT_OF_SAMESTEP, Comparison
from samestep.verify.run_record import RunRecord
from samestep.verify.trace import Facts, Step, Trace

STEPS, BATCH, DATA = 8, 12, 52
"""The fifth step of an epoch has four samples: one for each of four workers, and not as many for three."""


def keys_of(step, epoch_length=DATA):
    """Return the keys of the samples of a step of one worker, in an order of their own in each epoch."""
    per_epoch = -(-epoch_length // BATCH)
    epoch, place = divmod(step, per_epoch)
    order = np.random.default_rng(epoch).permutation(epoch_length)
    return order[place * BATCH : (place + 1) * BATCH].astype(float).tolist()


def step_of(index, samples, *, jitter=0.0):
    """Return a step with the gradient of the global batch, on whichever rank."""
    of_step = np.random.default_rng([7, index])
    gradient, parameters = of_step.normal(size=16), np.random.default_rng(8).normal(size=16)
    noise = 1 + jitter * np.random.default_rng([9, index]).normal(size=16)
    return Step(
        index=index,
        samples=samples,
        losses=[float(1 + of_step.random())],
        learning_rates=[0.1 * 0.9**index],
        weight_decays=[5e-4],
        gradient=(gradient * noise).tolist(),
        gradient_norm=float(np.linalg.norm(gradient * noise)),
        before=(parameters + index).tolist(),
        after=(parameters + index - 0.1 * gradient * noise).tolist(),
        backwards=1,
    )


def run(size=1, *, change=None, facts=None, share=None, jitter=0.0, steps=STEPS, failure=None):
    """Return the record of a run on `size` workers, changed rank by rank.

    Args:
        change: given a rank and its step, returns the step to use, or None to drop it.
        facts: given a rank, returns its facts that differ from the usual.
        share: given a rank and the samples of a step, returns those of the rank.
    """
    share = share or (lambda rank, samples: samples[rank::size])
    traces = []
    for rank in range(size):
        made = [step_of(k, share(rank, keys_of(k)), jitter=jitter) for k in range(steps)]
        made = [step if change is None else change(rank, step) for step in made]
        kept = [step for step in made if step is not None]
        known = Facts(rank=rank, group_size=size, epsilon=1e-16, ended="end", printed="accuracy 0.50\n")
        traces.append(Trace(replace(known, **(facts(rank) if facts else {})), kept, len(kept)))
    return RunRecord(traces, runs_once=False, failure=failure)


REFERENCE, CONTROL = run(), run(jitter=1e-15)


def causes_in(seen):
    return [finding.cause for finding in causes(Comparison(REFERENCE, seen, CONTROL))]


def scaled(factor):
    def change(_, step):
        gradient = np.array(step.gradient) * factor
        return replace(step, gradient=gradient.tolist(), gradient_norm=step.gradient_norm * factor)

    return change


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_run_that_is_the_same_but_for_rounding_has_no_cause(size):
    assert causes_in(run(size)) == []
    assert causes_in(run(size, jitter=1e-15)) == []


def test_a_deviation_beyond_rounding_has_a_cause():
    assert causes_in(run(2, jitter=1e-9)) == ["gradient"]


@pytest.mark.parametrize(("since", "expected"), [(3, []), (4, ["gradient"])])
def test_rounding_may_grow_a_step_before_that_of_the_disturbed_run(since, expected):
    """Only this finds a comparison with the same step of that run alone."""

    def grown(from_step):
        return lambda _, step: step_of(step.index, step.samples, jitter=1e-9 * (step.index >= from_step))

    control, seen = run(change=grown(since)), run(2, change=grown(2))
    assert [finding.cause for finding in causes(Comparison(REFERENCE, seen, control))] == expected


@pytest.mark.parametrize("epsilon", [2.0**-7, 2.0**-10], ids=["bfloat16", "float16"])
def test_a_summed_or_twice_divided_gradient_exceeds_half_precision_rounding(epsilon):
    def half(_):
        return {"epsilon": epsilon, "parameter_epsilon": 1e-7}

    reference, control = run(facts=half), run(facts=half, jitter=epsilon)

    def causes_of(seen):
        return [finding.cause for finding in causes(Comparison(reference, seen, control))]

    assert causes_of(run(2, facts=half, jitter=4 * epsilon)) == []
    assert causes_of(run(2, facts=half, change=scaled(2), jitter=epsilon)) == ["sum-not-mean"]
    assert causes_of(run(2, facts=half, change=scaled(0.5), jitter=epsilon)) == ["divided-twice"]


@pytest.mark.parametrize("first", [np.inf, -np.inf, np.nan])
def test_a_loss_that_is_not_finite_in_both_runs_is_the_same_and_hides_no_other(first):
    def begins(factor, elsewhere=first):
        def change(_, step):
            loss = factor * step.losses[0] if step.index else elsewhere
            return replace(step, losses=[loss])

        return change

    reference, control = run(change=begins(1)), run(change=begins(1), jitter=1e-15)
    for change, expected in ((begins(1), []), (begins(2), ["loss-only"]), (begins(1, 0.5), ["loss-only"])):
        seen = Comparison(reference, run(2, change=change), control)
        assert [finding.cause for finding in causes(seen)] == expected


@pytest.mark.parametrize("infinite", ["run", "reference"])
def test_a_deviation_that_is_infinite_is_the_largest_one(infinite):
    def change(_, step):
        return replace(step, gradient=[np.inf] * 16) if step.index == 2 else step

    usual, here = (
        run(size, change=change if name == infinite else None)
        for name, size in (("reference", 1), ("run", 2))
    )
    comparison = Comparison(usual, here, usual)
    (finding,) = causes(comparison)
    assert (finding.cause, finding.step, finding.max_relative_deviation) == ("gradient", 2, None)
    assert comparison.largest_deviation is None
    assert max(deviation.value for deviation in comparison.deviations) == np.inf


def skipping(record, step):
    """Return a run that does not make a step, whose samples count towards the next one."""

    def without(trace):
        skipped, following = trace.steps[step : step + 2]
        later = replace(following, samples=skipped.samples + following.samples, backwards=2)
        steps = [*trace.steps[:step], later, *trace.steps[step + 2 :]]
        return replace(trace, steps=[replace(kept, index=index) for index, kept in enumerate(steps)])

    return replace(record, traces=[without(trace) for trace in record.traces])


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_step_that_one_worker_or_several_skip_is_no_remainder_that_is_dropped(is_alone):
    usual, shared = (skipping(REFERENCE, 3), run(2)) if is_alone else (REFERENCE, skipping(run(2), 3))
    control = skipping(CONTROL, 3) if is_alone else CONTROL
    codes = [finding.cause for finding in causes(Comparison(usual, shared, control))]
    assert codes[0] == "skipped-step"


@pytest.fixture
def half():
    """Returns a function that finds the causes of a run in bfloat16."""
    epsilon = 2.0**-7

    def facts(_):
        return {"epsilon": epsilon, "parameter_epsilon": 1e-7}

    def causes_of(**how):
        reference, control = run(facts=facts), run(facts=facts, jitter=2 * epsilon)
        return [
            finding.cause for finding in causes(Comparison(reference, run(2, facts=facts, **how), control))
        ]

    return causes_of


def test_a_small_scale_exceeds_half_precision_rounding_before_the_first_update(half):
    assert half(change=scaled(1.005)) == []
    assert half(change=scaled(1.03)) == ["gradient-scale"]
    assert half(change=lambda rank, step: scaled(1.03)(rank, step) if step.index else step) == []


def test_a_missing_sample_is_found_though_half_precision_hides_its_effect(half):
    def fewer(rank, samples):
        return samples[rank::2][:-1] if rank and len(samples) < BATCH else samples[rank::2]

    def keyless(rank, samples):
        return [key + 0.5 for key in fewer(rank, samples)]

    def change(_, step):
        return scaled(1.05)(_, step) if step.index == 4 else step

    assert half(change=change, share=fewer) == ["samples-left-out"]
    assert half(share=fewer) == []  # nothing is computed from the one that is missing
    assert half(change=change, share=keyless) == []  # and these need not be samples


@pytest.mark.parametrize("slope", [1e-6, 1e-8])
def test_a_schedule_that_steps_n_times_is_found_even_if_its_steps_are_small(slope):
    def slow(step, times=1):
        return replace(step, learning_rates=[0.1 * (1 - slope * step.index * times)])

    def single(_):
        return {"epsilon": 1e-7, "parameter_epsilon": 1e-7}

    reference, control = (run(change=lambda _, step: slow(step), facts=single) for _ in range(2))
    seen = run(2, change=lambda _, step: slow(step, 2), facts=single)
    assert [finding.cause for finding in causes(Comparison(reference, seen, control))] == ["schedule-n-times"]


def times_n(step):
    return replace(step, learning_rates=[2 * rate for rate in step.learning_rates])


def stepped_twice(step):
    return replace(step, learning_rates=[0.1 * 0.9 ** (2 * step.index)])


def other_gradient(step):
    """Return the step with another gradient, as other samples have."""
    return replace(step, gradient=(np.array(step.gradient) + 0.1 * np.arange(16)).tolist())


def padded(step):
    if len(step.samples) == BATCH // 2:
        return step
    return other_gradient(replace(step, samples=step.samples + step.samples[:1]))


def doubled(rank, step):
    return other_gradient(replace(step, samples=(np.array(keys_of(step.index)) + 1000 * rank).tolist()))


@pytest.mark.parametrize(
    ("cause", "change"),
    [
        ("sum-not-mean", scaled(2)),
        ("divided-twice", scaled(0.5)),
        ("gradient-scale", scaled(0.7)),
        ("lr-times-n", lambda _, step: times_n(step)),
        ("schedule-n-times", lambda _, step: stepped_twice(step)),
        ("learning-rate", lambda _, step: replace(step, learning_rates=[0.3])),
        ("weight-decay-times-n", lambda _, step: replace(step, weight_decays=[1e-3])),
        ("never-averaged", lambda rank, step: scaled(1 + rank)(rank, step)),
        ("accumulation-not-averaged", lambda rank, step: replace(scaled(1 + rank)(rank, step), backwards=3)),
        ("replicas-differ-at-start", lambda rank, step: replace(step, before=[float(rank)] * 16)),
        ("padded-samples", lambda _, step: padded(step)),
        (
            "samples-left-out",
            lambda _, step: other_gradient(replace(step, samples=step.samples[: BATCH // 2 - 1])),
        ),
        ("batch-times-n", doubled),
        (
            "overlapping-shards",
            lambda _, step: other_gradient(replace(step, samples=keys_of(step.index)[: BATCH // 2])),
        ),
        (
            "other-samples",
            lambda _, step: other_gradient(replace(step, samples=[key + 0.5 for key in step.samples])),
        ),
    ],
)
def test_a_fault_is_named(cause, change):
    assert causes_in(run(2, change=change, facts=lambda _: {"wrapped": True})) == [cause]


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (lambda index: 0.1 * 0.5**index, "schedule-n-times"),
        (lambda index: 0.2 * 0.5 ** (index // 2), "lr-times-n"),
        (lambda index: 0.1 * 0.7**index, "learning-rate"),
    ],
)
def test_the_rates_of_one_optimizer_are_compared_where_another_one_has_its_own(rate, expected):
    def alternating(rate_of_second):
        def change(_, step):
            index, number = divmod(step.index, 2)
            rates = [rate_of_second(index)] if number else [0.3 - 0.01 * index]
            return replace(step, optimizer=number, learning_rates=rates)

        return change

    reference = run(change=alternating(lambda index: 0.1 * 0.5 ** (index // 2)), steps=12)
    seen = run(2, change=alternating(rate), steps=12)
    assert [finding.cause for finding in causes(Comparison(reference, seen, reference))] == [expected]


def test_both_values_of_a_weight_decay_are_named():
    seen = run(3, change=lambda _, step: replace(step, weight_decays=[1.5e-3]))
    (finding,) = causes(Comparison(REFERENCE, seen, CONTROL))
    assert "0.0015" in finding.message
    assert "0.0005" in finding.message


@pytest.mark.parametrize("decays", [[], [5e-4], [0.0]])
def test_a_weight_decay_that_is_not_n_times_as_large_is_not_named(decays):
    """Only this finds a cause that names any other weight decay, such as none on N workers."""
    assert causes_in(run(2, change=lambda _, step: replace(step, weight_decays=decays))) == []


def test_gradients_are_compared_before_the_earliest_step_with_another_rate_or_weight_decay():
    """Only this finds a comparison up to the rate's step, which takes what the decay changes for a fault."""

    def change(_, step):
        rates = [0.3] if step.index > 1 else step.learning_rates
        later = other_gradient(step) if step.index else step
        return replace(later, learning_rates=rates, weight_decays=[1e-3])

    assert causes_in(run(2, change=change)) == ["learning-rate", "weight-decay-times-n"]


@pytest.mark.parametrize("name", ["buffers", "frozen"])
def test_different_untrained_tensors_are_named_only_if_values_differ(name):
    def facts(rank):
        return {name: [float(rank)] * 16}

    changed = run(2, change=lambda _, step: other_gradient(step), facts=facts)
    assert causes_in(changed) == ["buffers-differ-at-start"]
    assert causes_in(run(2, facts=facts)) == []
    assert causes_in(run(2, change=lambda _, step: other_gradient(step))) == ["gradient"]


def test_a_fault_of_a_serial_script_is_that_of_samestep():
    native = run(2, change=scaled(2))
    serial = replace(run(1, change=scaled(2)), runs_once=True, workers=2)
    (of_native,), (of_serial,) = (causes(Comparison(REFERENCE, seen, CONTROL)) for seen in (native, serial))
    assert of_native.cause == of_serial.cause == "sum-not-mean"
    assert FAULT_OF_SAMESTEP in of_serial.message
    assert FAULT_OF_SAMESTEP not in of_native.message


def test_a_refusal_is_no_fault_of_samestep():
    refused = run(1, facts=lambda _: {"ended": "UsageError", "message": "creates a process group"})
    (causes_in,) = causes(Comparison(REFERENCE, replace(refused, runs_once=True, workers=2), CONTROL))
    assert causes_in.cause == "refused"
    assert FAULT_OF_SAMESTEP not in causes_in.message


def evaluates(keys):
    return {"evaluated": [float(key) for key in keys]}


INDEPENDENT = {
    "never-averaged": lambda rank, step: scaled(1 + rank)(rank, step),
    "sum-not-mean": scaled(2),
    "batch-times-n": doubled,
    "padded-samples": lambda _, step: padded(step),
    "no-set-epoch": lambda _, step: step,
    "lr-times-n": lambda _, step: times_n(step),
    "weight-decay-times-n": lambda _, step: replace(step, weight_decays=[1e-3]),
    "padded-evaluation": lambda _, step: step,
}
"""Faults in the order of their gravity, and the change of a rank's step that each makes."""
HIDDEN = (
    {"never-averaged", "sum-not-mean"},  # one excludes the other
    {"sum-not-mean", "batch-times-n"},  # no gradient of the same samples is left
    {"batch-times-n", "padded-samples"},
)
"""Pairs that cannot occur together, or whose second fault can be seen only when the first is mended."""
TOGETHER = [
    names
    for count in (2, 3, 4)
    for names in combinations(INDEPENDENT, count)
    if not any(pair <= set(names) for pair in HIDDEN)
]


@pytest.mark.parametrize("names", TOGETHER, ids=" ".join)
def test_independent_faults_are_all_named_the_gravest_first(names):
    def change(rank, step):
        return reduce(lambda made, name: INDEPENDENT[name](rank, made), names, step)

    def facts(rank):
        keys = range(8) if "padded-evaluation" in names else range(7)
        return {
            "wrapped": True,
            "repeated_epochs": int("no-set-epoch" in names),
            **evaluates(key % 7 for key in list(keys)[rank::2]),
            **({"printed": "accuracy 0.57\n"} if "padded-evaluation" in names else {}),
        }

    reference, control = (run(facts=lambda _: evaluates(range(7)), jitter=jitter) for jitter in (0, 1e-15))
    comparison = Comparison(reference, run(2, change=change, facts=facts), control)

    assert [finding.cause for finding in causes(comparison)] == list(names)


def test_a_schedule_by_epochs_that_become_shorter_is_no_fault_of_its_own():
    def change(rank, step):
        return replace(doubled(rank, step), learning_rates=[0.1 * 0.9 ** (step.index + (step.index > 4))])

    assert causes_in(run(2, change=change)) == ["batch-times-n"]


def test_the_reported_one_of_ranks_that_fail_in_one_step_is_named_with_its_line():
    failure = Failure(rank=1, local_rank=1, pid=7, exit_code=1, error="RuntimeError", line="train.py:7")
    facts = {"ended": "RuntimeError", "message": "unused parameters"}
    (finding,) = causes(Comparison(REFERENCE, run(2, facts=lambda _: facts, failure=failure), CONTROL))
    assert (finding.cause, finding.ranks, finding.place) == ("crash", (1,), ("train.py", 7))


def test_a_fault_before_a_crash_is_named_beside_it():
    def change(rank, step):
        return scaled(1 + rank)(rank, step)

    def failed(_):
        return {"ended": "ValueError", "message": "no such batch"}

    assert causes_in(run(2, change=change, facts=failed)) == ["crash", "never-averaged"]


def test_optimizers_that_make_ranks_diverge_are_found():
    def change(rank, step):
        return replace(step, after=[value * (1 + rank) for value in step.after])

    assert causes_in(run(2, change=change)) == ["replicas-diverge"]


def test_weights_that_the_ranks_change_between_two_steps_are_not_the_optimizers_work():
    def change(rank, step):
        factor = 1 + rank * (step.index >= 3)
        return replace(step, before=[factor * k for k in step.before], after=[factor * k for k in step.after])

    (finding,) = causes(Comparison(REFERENCE, run(2, change=change), CONTROL))
    assert (finding.cause, finding.step) == ("replicas-diverge", 3)
    assert "optimizer does something else" not in finding.message


@pytest.mark.parametrize(("spread", "advised"), [(0.5, True), (0.0, False)])
def test_gradients_that_are_clipped_before_they_are_averaged_are_explained(spread, advised):
    def change(rank, step):
        return replace(other_gradient(step), unclipped=2 + spread * rank)

    (finding,) = causes(Comparison(REFERENCE, run(2, change=change), CONTROL))
    assert (finding.cause, "clipped" in finding.advice) == ("gradient", advised)


def test_ranks_that_hang_at_different_steps_are_reported_as_a_hang():
    def killed(_):
        return {"ended": "killed"}

    hung = Failure(rank=0, local_rank=0, pid=1, exit_code=1, error="OutOfStep", message="rank 0 waits")
    seen = run(
        2,
        change=lambda rank, step: step if step.index < STEPS - rank else None,
        facts=killed,
        failure=hung,
    )

    assert causes_in(seen) == ["hang"]


def test_equally_weighted_means_of_uneven_shares_are_found_at_the_first_uneven_step():
    def change(rank, step):
        return scaled(1.0)(rank, step) if len(step.samples) * 3 == BATCH else other_gradient(step)

    (finding,) = causes(Comparison(REFERENCE, run(3, change=change), CONTROL))
    assert (finding.cause, finding.step) == ("mean-of-means", DATA // BATCH)
    assert "[2, 1, 1]" in finding.message


@pytest.mark.parametrize("samples", [lambda step: [0.5, 1.5, 2.5], lambda step: 2 * step.samples])
def test_keys_that_differ_where_nothing_else_does_are_no_keys_of_samples(samples):
    """Such keys come from a batch with the samples in its second dimension, or from positions."""
    assert causes_in(run(2, change=lambda _, step: replace(step, samples=samples(step)))) == []


def test_samples_that_are_unknown_do_not_count_as_equal():
    reference, control, seen = (
        run(size, share=lambda *_: [], jitter=jitter) for size, jitter in ((1, 0), (1, 1e-15), (2, 1e-9))
    )
    comparison = Comparison(reference, seen, control)
    assert [finding.cause for finding in causes(comparison)] == ["gradient"]
    assert not comparison.has_same_samples(0)


def test_another_order_of_the_same_samples_has_its_own_cause():
    def backwards(_, step):
        mirrored = step.index if step.index > 4 else 3 - step.index if step.index < 4 else 4
        return other_gradient(replace(step, samples=keys_of(mirrored)[_::2]))

    assert causes_in(run(2, change=backwards)) == ["other-order"]


def test_ranks_that_all_use_global_batches_are_found_though_nothing_else_differs():
    assert causes_in(run(2, share=lambda _, samples: samples)) == ["overlapping-shards"]
    equal_keys = run(2, share=lambda *_: [1.0, 2.0])  # positions, for example
    reference = run(share=lambda *_: [1.0, 2.0])
    assert causes(Comparison(reference, equal_keys, run(share=lambda *_: [1.0, 2.0], jitter=1e-15))) == []


def test_workers_without_a_process_group_are_silent_copies():
    assert causes_in(run(2, facts=lambda _: {"group_size": 1})) == ["silent-copies"]


def test_a_sampler_that_repeats_its_order_is_found_before_the_order():
    def change(_, step):
        return replace(step, samples=[key + 0.5 for key in step.samples])

    assert causes_in(run(2, change=change, facts=lambda _: {"repeated_epochs": 1})) == ["no-set-epoch"]


def test_a_sampler_that_repeats_its_order_explains_other_samples_from_the_second_epoch_on():
    """Only this finds a second cause that is named for the same fault."""
    per_epoch = -(-DATA // BATCH)

    def change(rank, step):
        if step.index < per_epoch:
            return step
        return other_gradient(replace(step, samples=keys_of(step.index - per_epoch)[rank::2]))

    assert causes_in(run(2, change=change, facts=lambda _: {"repeated_epochs": 1})) == ["no-set-epoch"]


def test_a_rank_that_ends_its_loop_before_the_others_is_found():
    seen = run(2, change=lambda rank, step: step if step.index < STEPS - rank else None)
    assert causes_in(seen) == ["steps-differ"]


def test_a_rank_that_fails_is_reported_with_its_error():
    def failed(rank):
        return {"ended": "ValueError", "message": "no\nsuch batch"} if rank else {"ended": "killed"}

    (finding,) = causes(Comparison(REFERENCE, run(2, facts=failed), CONTROL))
    assert finding.cause == "crash"
    assert "rank 1 failed: ValueError: no such batch" in finding.message


def test_a_rank_that_is_killed_or_hangs_is_found_from_the_launchers_failure():
    def killed(_):
        return {"ended": "killed"}

    died = Failure(rank=1, local_rank=1, pid=1, exit_code=-9)
    hung = replace(died, exit_code=1, error="OutOfStep", message="rank 1 does not come")
    assert causes_in(run(2, facts=killed, failure=died)) == ["crash"]
    assert causes_in(run(2, facts=killed, failure=hung)) == ["hang"]


def test_ranks_that_end_before_they_write_their_group_are_no_silent_copies():
    """Only this finds the accusation of a script that ends with ``os._exit(0)``."""
    assert causes_in(run(2, facts=lambda _: {"ended": "killed", "group_size": 1})) == []


def test_an_evaluation_that_counts_repeats_is_found_and_one_on_every_rank_is_not():
    reference = run(facts=lambda _: {"evaluated": [float(k) for k in range(7)]})
    control = run(facts=lambda _: {"evaluated": [float(k) for k in range(7)]}, jitter=1e-15)

    def shares(rank):
        return {"evaluated": [float(k % 7) for k in range(8)][rank::2]}

    def all_of_it(_):
        return {"evaluated": [float(k) for k in range(7)]}

    def causes_of(facts):
        return [finding.cause for finding in causes(Comparison(reference, run(2, facts=facts), control))]

    def counted(rank):
        return {**shares(rank), "gathered": True, "printed": "accuracy 0.57\n"}

    def counted_on_rank_0(rank):
        return {**counted(rank), "gathered": False}

    def remainder_on_all(rank):  # a sampler that drops the remainder, which every rank then evaluates
        return {"evaluated": [*(float(k) for k in range(6)[rank::2]), 6.0], "printed": "accuracy 0.57\n"}

    def remainder_on_all_and_repeats(rank):
        return {**counted(rank), "evaluated": [*([0.0, 2.0, 4.0], [1.0, 3.0, 0.0])[rank], 5.0, 6.0]}

    assert causes_of(counted) == ["padded-evaluation"]
    assert causes_of(counted_on_rank_0) == ["padded-evaluation", "local-metric"]
    assert causes_of(remainder_on_all) == ["local-metric"]
    assert causes_of(remainder_on_all_and_repeats) == ["padded-evaluation"]
    assert causes_of(shares) == []  # the repeats change no number
    assert causes_of(all_of_it) == []


def test_repeats_that_the_script_drops_are_no_fault_where_rank_0_prints_its_own_progress():
    """Only this catches an accusation of `gather_for_metrics` beside a print of rank 0's loss."""

    def facts(loss, evaluated):
        printed = f"rank 0: loss {loss}\naccuracy 0.50\n"
        return lambda rank: {"printed": printed, "evaluated": evaluated[rank]}

    whole = [float(k) for k in range(7)]
    reference = run(facts=facts(0.5, [whole]))
    control = run(facts=facts(0.5, [whole]), jitter=1e-15)
    seen = run(2, facts=facts(0.57, [[0.0, 2.0, 4.0, 6.0], [1.0, 3.0, 5.0, 0.0]]))
    assert causes(Comparison(reference, seen, control)) == []


@pytest.mark.parametrize(
    ("part", "sums", "expected"),
    [
        (slice(None), [36.0, 80.0], ["local-metric"]),
        (slice(None), [18.0, 40.0], []),  # the counts of another line
        (slice(0, 3), [36.0, 80.0], []),  # of the samples of a rank, such as its batches
    ],
)
def test_counts_that_ranks_sum_of_an_evaluation_that_each_makes_are_found(part, sums, expected):
    samples = [float(k) for k in range(6)]

    def facts(right, combined, evaluated):
        return lambda _: {"printed": f"right {right}\n", "combined": combined, "evaluated": evaluated}

    usual = facts(18, [18.0, 40.0], samples)
    reference, control = run(facts=usual), run(facts=usual, jitter=1e-15)
    seen = run(2, facts=facts(36, sums, samples[part]))
    found = causes(Comparison(reference, seen, control))
    assert [finding.cause for finding in found] == expected
    assert all("every rank evaluates" in finding.message for finding in found)


def counted(accuracy, batches=2):
    return "".join(
        f"Test: [{batch}/9] accuracy {accuracy + batch / 100:.4f}\n" for batch in range(1, 1 + batches)
    )


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("accuracy 0.50", "accuracy 0.25", ["local-metric"]),
        # times and sizes
        ("loss 1.50 time 3.1", "loss 1.50 time 9.9", []),
        ("loss 1.50 3 it/s", "loss 1.50 8 it/s", []),
        ("loss 1.50 [00:01<00:09]", "loss 1.50 [00:02<00:03]", []),
        ("1 workers with batches of 25", "2 workers with batches of 13", []),
        # each number by itself
        ("lr 5.0e-05 loss 1.5000", "lr 5.0e-05 loss 1.9000", ["local-metric"]),
        ("lr 0.0 accuracy 0.5000", "lr 0.0 accuracy 0.7000", ["local-metric"]),
        ("rate 5.0e-05", "rate 5.1e-05", []),
        ("rate 5.0e-05", "rate 9.0e-05", ["local-metric"]),
        # lines that count the batches of an evaluation are progress, and its result is not
        (counted(0.5) + "accuracy 0.8000", counted(0.6) + "accuracy 0.8000", ["local-print"]),
        (counted(0.5) + "accuracy 0.8000", counted(0.6) + "accuracy 0.7000", ["local-metric"]),
        (counted(0.5, batches=1), counted(0.6, batches=1), ["local-metric"]),  # an epoch and its result?
    ],
)
def test_printed_results_are_compared(before, after, expected):
    reference, control, seen = (
        run(size, facts=lambda _: {"printed": f"{text}\n"}, jitter=jitter)  # noqa: B023 - called at once
        for size, text, jitter in ((1, before, 0), (1, before, 1e-15), (2, after, 0))
    )
    assert [finding.cause for finding in causes(Comparison(reference, seen, control))] == expected


def test_a_line_of_progress_with_the_loss_of_a_share_is_an_exception_and_a_result_is_not():
    def change(rank, step):
        return replace(step, losses=[step.losses[0] + (0.25 if rank == 0 else -0.25)])

    def record(size=1, *, accuracy, every=1, evaluated=(), jitter=0.0):
        """Return a run that prints loss and accuracy behind each step, and may evaluate before that."""
        seen = run(size, change=change if size > 1 else None, jitter=jitter)
        trace, text, steps = seen.traces[0], "", []
        for step in trace.steps:
            steps.append(replace(step, printed=len(text), evaluated=[*evaluated]))
            if step.index % every == every - 1:
                text += f"loss {step.losses[0]:.4f} accuracy {accuracy}\n"
        facts = replace(trace.facts, printed=text, evaluated=[*evaluated])
        traces = [replace(trace, steps=steps, facts=facts), *seen.traces[1:]]
        return replace(seen, traces=traces)

    per_epoch = -(-DATA // BATCH)
    for options, expected in (
        ({}, "local-print"),
        ({"evaluated": [1.0]}, "local-metric"),
        ({"every": per_epoch}, "local-metric"),
    ):
        reference = record(accuracy=0.50, **options)
        control = record(accuracy=0.50, jitter=1e-15, **options)
        seen = record(2, accuracy=0.75, **options)
        assert [finding.cause for finding in causes(Comparison(reference, seen, control))] == [expected]


@pytest.mark.parametrize(("norms", "expected"), [((6.0, 3.0), "sum-not-mean"), ((1.5, 3.0), "divided-twice")])
def test_the_scale_of_a_gradient_is_that_before_it_is_clipped(norms, expected):
    def clipped(norm, factor):
        def change(_, step):
            gradient = np.array(step.gradient) * factor
            return replace(step, gradient=gradient.tolist(), unclipped=norm)

        return change

    reference, control = (run(change=clipped(norms[1], 1.0), jitter=jitter) for jitter in (0, 1e-15))
    comparison = Comparison(reference, run(2, change=clipped(norms[0], 1.3)), control)
    assert [finding.cause for finding in causes(comparison)] == [expected]


def progress_of(texts, *, size=1, jitter=0.0):
    """Return a run that prints a text behind each step, in which no loss is printed."""
    seen = run(size, jitter=jitter)
    trace, printed, steps = seen.traces[0], "", []
    for step, text in zip(trace.steps, texts, strict=True):
        steps.append(replace(step, printed=len(printed)))
        printed += f"{text}\n"
    facts = replace(trace.facts, printed=printed)
    return replace(seen, traces=[replace(trace, steps=steps, facts=facts), *seen.traces[1:]])


@pytest.mark.parametrize(
    ("usual", "here", "expected"),
    [
        ("mean 0.50{}", "mean 0.60{}", "local-print"),  # a running mean of rank 0's share
        ("mean 0.50", "mean 1.00", "local-metric"),  # a sum over the ranks
        ("mean 1.00", "mean 0.50", "local-metric"),  # divided twice
        ("[48/240] mean 0.50", "[36/240] mean 0.50", "local-print"),  # samples until the last of rank 0's
    ],
)
def test_lines_of_progress_may_have_numbers_of_rank_0s_share_but_no_sums(usual, here, expected):
    reference, control = (progress_of([usual.format(k) for k in range(STEPS)], jitter=j) for j in (0, 1e-15))
    seen = progress_of([here.format(k) for k in range(STEPS)], size=2)
    assert [finding.cause for finding in causes(Comparison(reference, seen, control))] == [expected]


def test_a_loss_that_differs_alone_is_an_exception():
    def change(_, step):
        return replace(step, losses=[loss * 0.7 for loss in step.losses])

    (finding,) = causes(Comparison(REFERENCE, run(2, change=change), CONTROL))
    assert (finding.cause, finding.kind, finding.step) == ("loss-only", "exception", 0)


def test_a_loss_is_a_fault_if_nothing_else_is_compared():
    def without(size, factor=1.0, jitter=0.0):
        def change(_, step):
            return replace(
                step, losses=[factor * loss for loss in step.losses], gradient=[], before=[], after=[]
            )

        return run(size, change=change, jitter=jitter)

    comparison = Comparison(without(1), without(2, factor=0.7), without(1, jitter=1e-15))
    assert [(finding.cause, finding.kind) for finding in causes(comparison)] == [("loss", "fault")]


@pytest.mark.parametrize(("samples", "is_alone"), [([0.0, 1.0, 2.0], True), ([0.0, 2.0], False)])
def test_a_differing_metric_of_all_samples_is_attributed_to_the_size_of_a_batch(samples, is_alone):
    reference, control = (
        run(facts=lambda _: {"evaluated": [2.0, 1.0, 0.0]}, jitter=jitter) for jitter in (0, 1e-15)
    )
    seen = run(2, facts=lambda _: {"evaluated": samples, "printed": "accuracy 0.60\n"})
    (finding,) = causes(Comparison(reference, seen, control))
    assert finding.cause == "local-metric"
    assert ("size of a batch" in finding.message) == is_alone


@pytest.mark.parametrize("is_divided", [True, False])
def test_the_same_batches_in_fewer_backwards_per_rank_are_the_same_step(is_divided):
    def parts(backwards):
        """Return the losses of a step of so many backwards, divided by their number or not."""
        return lambda _, step: replace(
            step,
            losses=[step.losses[0] / (backwards if is_divided else 1)] * backwards,
            backwards=backwards,
        )

    reference, control, seen = (
        run(size, change=parts(4 // size), jitter=jitter) for size, jitter in ((1, 0), (1, 1e-15), (2, 0))
    )
    assert causes(Comparison(reference, seen, control)) == []


def test_the_loss_of_a_share_that_is_printed_as_such_is_a_named_exception():
    def change(rank, step):
        return replace(step, losses=[step.losses[0] + (0.25 if rank == 0 else -0.25)])

    usual = REFERENCE.at(3).losses[0]

    def prints(value):
        return lambda _: {"printed": f"loss {value:.4f}\n"}

    reference, control = run(facts=prints(usual)), run(facts=prints(usual), jitter=1e-15)
    for value, expected in (
        (usual + 0.25, [("local-print", True)]),
        (usual + 0.5, [("local-metric", False)]),
    ):
        seen = run(2, change=change, facts=prints(value))
        assert [
            (finding.cause, finding.kind == "exception")
            for finding in causes(Comparison(reference, seen, control))
        ] == expected


def test_a_truncated_run_ends_before_the_step():
    seen = run(2, facts=lambda _: {"evaluated": [1.0], "printed": "0123456789"}).until(3)
    assert seen.steps == 3
    assert seen.evaluated(3).size == 0
    assert seen.facts.printed == ""
    assert causes_in(seen) == ["number-of-steps"]
