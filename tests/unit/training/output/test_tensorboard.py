"""``--logger tensorboard`` writes event files that TensorBoard reads."""

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from samestep.training.output.loggers import TensorBoard
from support.run_files import CONFIG, RESULT, evaluation_row, step_row


@pytest.fixture
def logger(tmp_path):
    """Return a function that opens loggers to one run folder; they are closed at the end."""
    opened = []

    def begin():
        opened.append(TensorBoard(tmp_path / "tensorboard", CONFIG))
        return opened[-1]

    yield begin
    for log in opened:
        log.close(None)


def events_in(tmp_path):
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    return events


def scalars(events, name):
    return [(event.step, pytest.approx(event.value)) for event in events.Scalars(name)]


def test_rows_and_evaluations_can_be_read_at_once(tmp_path, logger):
    log = logger()

    log.steps([step_row(1, loss=2.0), step_row(2, loss=1.0)])
    log.evaluation(evaluation_row(2))

    events = events_in(tmp_path)
    assert scalars(events, "train/loss") == [(1, 2.0), (2, 1.0)]
    assert scalars(events, "phase/forward") == [(1, 0.002), (2, 0.002)]
    assert scalars(events, "test/accuracy") == [(2, 0.75)]
    assert scalars(events, "test/AUROC") == [(2, 0.9)]
    assert "test/train_loss" not in events.Tags()["scalars"]


@pytest.mark.parametrize("untrained", [True, False], ids=["evaluated first", "trained"])
def test_the_configuration_is_written_with_the_first_row(tmp_path, logger, untrained):
    log = logger()

    if untrained:
        log.evaluation(evaluation_row(0))
    log.steps([step_row(1)])

    (text,) = events_in(tmp_path).Tensors("config/text_summary")
    assert b'recipe = "digits"' in text.tensor_proto.string_val[0]


def test_a_resumed_run_removes_the_events_after_its_checkpoint(tmp_path, logger):
    first = logger()
    first.steps([step_row(step, loss=float(step)) for step in range(1, 8)])
    first.evaluation(evaluation_row(4, accuracy=0.4))
    first.evaluation(evaluation_row(7, accuracy=0.7))
    # killed: not closed

    second = logger()
    second.steps([step_row(5, loss=50.0)])
    second.close(RESULT)

    events = events_in(tmp_path)
    assert scalars(events, "train/loss") == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (5, 50.0)]
    assert scalars(events, "test/accuracy") == [(4, 0.4)]


def test_a_run_without_a_step_writes_no_event_file(tmp_path, logger):
    logger().close(None)

    assert list(tmp_path.iterdir()) == []
