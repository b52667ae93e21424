"""Files are downloaded once and verified, and failed downloads are reported in one line."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from filelock import FileLock

from samestep.base.errors import DataError
from samestep.training.data.published import fetch
from support.idx_files import ENCODERS, TinySet


class Mirror(ThreadingHTTPServer):
    """Serves files on loopback and counts requests; answers once `gate` is set."""

    def __init__(self, files):
        self.files, self.requests, self.gate = files, Counter(), threading.Event()
        self.gate.set()
        super().__init__(("127.0.0.1", 0), Answer)

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}/"


class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        name = self.path.lstrip("/")
        self.server.requests[name] += 1
        self.server.gate.wait(10)
        content = self.server.files.get(name)
        self.send_response(200 if content is not None else 404)
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        self.wfile.write(content or b"")

    def log_message(self, *args):
        pass


@pytest.fixture
def mirror(monkeypatch, tmp_path):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    contents = {f"{name}.gz": ENCODERS[".gz"](data) for name, data in TinySet().contents.items()}
    with Mirror(contents) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def files_in(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def test_a_data_set_is_downloaded_once_and_cached(mirror, tmp_path):
    entry = TinySet(mirrors=(mirror.address,)).entry
    for _ in range(2):
        assert entry.load("train").labels.tolist() == [3, 1, 4, 1, 5]
    assert mirror.requests == {"tiny-images-idx3-ubyte.gz": 1, "tiny-labels-idx1-ubyte.gz": 1}
    assert files_in(tmp_path / "samestep" / "tiny") == [
        "tiny-images-idx3-ubyte.gz",
        "tiny-labels-idx1-ubyte.gz",
    ]


def test_a_second_download_waits_and_uses_the_file_of_the_first(mirror, tmp_path, caplog):
    entry = TinySet(mirrors=(mirror.address,)).entry
    file = entry.files["train"][0]
    mirror.gate.clear()
    with ThreadPoolExecutor(2) as workers:
        both = [workers.submit(fetch, file, entry.mirrors, tmp_path) for _ in range(2)]
        while "waiting for another process" not in caplog.text:
            assert not any(one.done() for one in both)
        mirror.gate.set()
        paths = {one.result(timeout=10) for one in both}
    assert paths == {tmp_path / "tiny-images-idx3-ubyte.gz"}
    assert mirror.requests == {"tiny-images-idx3-ubyte.gz": 1}


def test_the_next_mirror_is_used_if_the_first_fails(mirror, tmp_path):
    entry = TinySet(mirrors=(mirror.address + "nothing-here/", mirror.address)).entry
    assert len(entry.load("train")) == 5


def test_a_wrong_file_is_refused_and_not_cached(mirror, tmp_path):
    mirror.files["tiny-images-idx3-ubyte.gz"] = b"has no format number"
    entry = TinySet(mirrors=(mirror.address,)).entry
    with pytest.raises(DataError, match=r"127\.0\.0\.1:\d+: not the published file"):
        entry.load("train")
    assert files_in(tmp_path / "samestep" / "tiny") == []


def test_failed_downloads_are_reported_in_one_line_with_the_error_of_each_mirror(mirror, tmp_path):
    closed = Mirror({})
    closed.server_close()
    entry = TinySet(mirrors=(closed.address, mirror.address + "gone/")).entry
    with pytest.raises(DataError) as refusal:
        entry.load("train")
    message = str(refusal.value)
    assert "\n" not in message
    assert "ConnectionError" in message
    assert "HTTP 404" in message
    assert "--data-dir" in message


def test_a_lock_that_is_never_released_is_reported_with_its_path(monkeypatch, tmp_path):
    monkeypatch.setattr("samestep.training.data.published._LOCK_TIMEOUT_S", 0.01)
    file = TinySet().entry.files["train"][0]
    lock = tmp_path / f".{file.name}.gz.lock"
    with FileLock(lock), pytest.raises(DataError, match="\\.lock") as refusal:
        fetch(file, (), tmp_path)
    assert str(lock) in str(refusal.value)


def test_a_cache_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match="XDG_CACHE_HOME"):
        fetch(TinySet().entry.files["train"][0], (), tmp_path / "file" / "cache")
