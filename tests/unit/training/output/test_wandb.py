"""Without a network, ``--logger wandb`` stores all data in files of the run folder."""

import json
import struct

import pytest
import wandb
from wandb.proto.wandb_internal_pb2 import Record

from samestep.training.output.loggers import open_wandb, with_loggers
from samestep.training.output.run_folder import RunFolder
from support.run_files import CONFIG, RESULT, evaluation_row, step_row


@pytest.fixture(autouse=True)
def without_login(monkeypatch, tmp_path_factory):
    """Remove the user's login and settings of wandb; end its service afterwards."""
    for name in ("NETRC", "WANDB_API_KEY", "WANDB_MODE", "WANDB_PROJECT", "WANDB_NAME", "WANDB_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")  # it would call home
    yield
    wandb.teardown()


def chunks(log):
    """Yield the records of a file of wandb's: LevelDB's log format after a header of 7 bytes."""
    block, head, position, whole = 32_768, 7, 7, b""
    while position + head <= len(log):
        left = block - position % block
        if left < head:
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", log, position)
        position += head + length
        whole += log[position - length : position]
        if kind in (1, 4):  # full, last
            yield whole
            whole = b""


def records(folder):
    """End wandb's service; return the records of each start of a run, in order of time."""
    wandb.teardown()  # only then is all of it written for certain
    starts = sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns)
    return [[Record.FromString(chunk) for chunk in chunks(path.read_bytes())] for path in starts]


def history(start):
    """Return the logged rows of a start."""
    return [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for record in start
        if record.HasField("history")
    ]


def test_without_a_login_all_data_is_stored_in_the_run_folder(tmp_path):
    messages = []
    logger = open_wandb(tmp_path / "runs" / "mine", CONFIG, messages.append)
    logger.steps([step_row(1, loss=2.0), step_row(2, loss=1.0)])
    logger.evaluation(evaluation_row(2))
    logger.close(RESULT)

    (start,) = records(tmp_path / "runs" / "mine")
    (run,) = (record.run for record in start if record.HasField("run"))
    rows = history(start)
    ends = [record.exit.exit_code for record in start if record.HasField("exit")]
    assert [row["step"] for row in rows] == [1, 2, 2]
    assert [row.get("train/loss") for row in rows] == [2.0, 1.0, None]
    assert (rows[2]["test/accuracy"], rows[2]["test/AUROC"]) == (0.75, 0.9)
    assert (run.project, run.display_name) == ("samestep", "mine")
    assert {item.key: json.loads(item.value_json) for item in run.config.update}["lr"] == 0.1
    assert ends == [0]
    (line,) = messages
    assert line.startswith("wandb: ")


def test_a_resumed_run_keeps_its_id(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    first = open_wandb(tmp_path, CONFIG, pytest.fail)
    first.steps([step_row(1)])
    first.close(None)

    second = open_wandb(tmp_path, CONFIG, pytest.fail)
    second.steps([step_row(2)])
    second.close(RESULT)

    starts = records(tmp_path)
    ids = [record.run.run_id for start in starts for record in start if record.HasField("run")]
    ends = [record.exit.exit_code for start in starts for record in start if record.HasField("exit")]
    assert ids[0] == ids[1] == (tmp_path / "wandb" / "run-id").read_text().strip()
    assert [[row["step"] for row in history(start)] for start in starts] == [[1], [2]]
    assert ends == [1, 0]  # a run without a result has not finished


def test_environment_variables_of_wandb_take_precedence(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_PROJECT", "theirs")
    monkeypatch.setenv("WANDB_NAME", "named")

    open_wandb(tmp_path, CONFIG, pytest.fail).close(RESULT)

    ((run,),) = ([record.run for record in start if record.HasField("run")] for start in records(tmp_path))
    assert (run.project, run.display_name) == ("theirs", "named")


def test_a_disabled_wandb_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")

    logger = open_wandb(tmp_path, CONFIG, pytest.fail)
    logger.steps([step_row(1)])
    logger.close(RESULT)

    assert records(tmp_path) == []


def unreachable(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef" * 3)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # nothing listens there
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "1")


def bad_key(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_API_KEY", "too-short")


def bad_netrc(monkeypatch, tmp_path):
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password too-short\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


@pytest.mark.parametrize("trouble", [unreachable, bad_key, bad_netrc])
def test_an_unusable_server_or_login_is_reported_and_all_data_is_stored_in_the_run_folder(
    tmp_path, monkeypatch, trouble
):
    trouble(monkeypatch, tmp_path)
    messages = []

    logger = open_wandb(tmp_path, CONFIG, messages.append)
    logger.steps([step_row(1)])
    logger.close(RESULT)

    (start,) = records(tmp_path)
    assert [row["step"] for row in history(start)] == [1]
    (line,) = messages
    assert line.startswith("wandb: ")
    assert "login;" not in line
    assert f"{tmp_path}/wandb" in line


def test_a_logger_that_cannot_be_opened_is_reported_and_the_run_continues(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    (tmp_path / "wandb").write_text("in the way")
    messages = []

    sink = with_loggers(RunFolder(tmp_path), ["wandb"], CONFIG, report=messages.append)
    sink.steps([step_row(1)])

    (line,) = messages
    assert line.startswith("--logger wandb failed and is now off (FileExistsError: ")
    assert (tmp_path / "metrics.jsonl").exists()
