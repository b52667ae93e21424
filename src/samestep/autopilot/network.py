"""Sends each network request of a replicated script once, on rank 0; the other ranks get the response.

Responses are files in a folder that the ranks share. All ranks make the same requests in the same order, so
the n-th request to an address is the same on all ranks. No rank waits in a collective, and threads of a
script may make requests concurrently. A rank that does not share the folder, as on another node, sends its
own requests.
"""

import hashlib
import importlib.util
import io
import os
import pickle
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPResponse, parse_headers
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import IO, Any, TypeAlias
from urllib.error import HTTPError
from urllib.request import OpenerDirector, Request

from samestep.autopilot.files.file_calls import unredirected
from samestep.autopilot.script.shared_folder import CommonFolder
from samestep.hooks import declarations
from samestep.hooks.registry import Make, attached, attached_to, wrapping
from samestep.ranks.world.protocol import World

_SCHEMES = ("http:", "https:")
_PATIENCE_S = 60.0  # seconds that a rank waits for rank 0 to begin the same request
_Send: TypeAlias = Callable[[IO[bytes]], Any]
"""Sends a request, writes the body of the response, and returns the rest of it, which can be pickled."""


class SharedResponses:
    """The responses that the ranks of a script share."""

    def __init__(self, folder: CommonFolder, rank: int) -> None:
        self._folder, self._rank, self._sharing = folder.path, rank, folder.sharing
        self._process, self._thread = os.getpid(), threading.local()
        self._lock = threading.Lock()
        self._requested: Counter[str] = Counter()
        self._kept: list[Path] = []

    @property
    def applies(self) -> bool:
        """Whether a request now is shared: not in a loader's worker, nor within another request."""
        is_script = os.getpid() == self._process and not getattr(self._thread, "is_requesting", False)
        return is_script and self._rank in self._sharing

    def get(self, key: str, send: _Send) -> tuple[Any, IO[bytes]]:
        """Return a response and its body, open for reading; raise the error of the request."""
        with self._lock:
            number = self._requested[key] = self._requested[key] + 1
        name = hashlib.sha256(f"{number} {key}".encode()).hexdigest()[:32]
        self._thread.is_requesting = True
        try:
            with unredirected():
                place = self._folder / name
                if self._rank == 0:
                    self._drop_read_by_all()
                    self._make(place, send)
                elif not self._await(place):
                    body = tempfile.TemporaryFile()  # noqa: SIM115 - the reader closes it
                    response = send(body)
                    body.seek(0)
                    return response, body
                return self._read(place)
        finally:
            self._thread.is_requesting = False

    def _make(self, place: Path, send: _Send) -> None:
        place.with_suffix(".begun").touch()
        response, error = None, None
        with place.open("wb") as body:
            try:
                response = send(body)
            except Exception as found:  # noqa: BLE001 - raised again on every rank
                error = _picklable(found)
        part = place.with_suffix(".part")
        part.write_bytes(pickle.dumps((response, error)))
        part.rename(place.with_suffix(".done"))
        self._kept.append(place)

    def _await(self, place: Path) -> bool:
        """Wait until rank 0 has a response; return False if it does not make the request."""
        deadline = time.monotonic() + _PATIENCE_S
        while not place.with_suffix(".done").exists():
            if time.monotonic() > deadline and not place.with_suffix(".begun").exists():
                return False
            time.sleep(0.01)
        return True

    def _read(self, place: Path) -> tuple[Any, IO[bytes]]:
        response, error = pickle.loads(place.with_suffix(".done").read_bytes())  # noqa: S301 - written by rank 0
        body = place.open("rb")
        place.with_suffix(f".{self._rank}").touch()
        if error is not None:
            body.close()
            raise error
        return response, body

    def _drop_read_by_all(self) -> None:
        with self._lock:
            for place in self._kept[:]:
                if all(place.with_suffix(f".{rank}").exists() for rank in self._sharing):
                    place.unlink()
                    self._kept.remove(place)


def _picklable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - made here
    except Exception:  # noqa: BLE001 - its class may raise any error
        return OSError(f"{type(error).__name__}: {error}")
    return error


@contextmanager
def shared_network(world: World, folder: CommonFolder) -> Iterator[None]:
    """Let only rank 0 use the network; the other ranks of the script get its responses.

    This holds for urllib (`urlopen`, `urlretrieve`, `torch.hub`, torchvision) and the package requests.
    """
    responses = SharedResponses(folder, world.place.rank)

    def opened(
        original: Any, opener: OpenerDirector, fullurl: Any, data: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        url = fullurl.full_url if isinstance(fullurl, Request) else fullurl
        if not responses.applies or not str(url).startswith(_SCHEMES):
            return original(opener, fullurl, data, *args, **kwargs)

        def send(body: IO[bytes]) -> tuple[Any, ...]:
            try:
                response = original(opener, fullurl, data, *args, **kwargs)
            except HTTPError as refused:  # it is a response, too
                shutil.copyfileobj(refused, body)
                return True, refused.url, refused.code, str(refused.reason), str(refused.headers)
            with response:
                shutil.copyfileobj(response, body)
            return False, response.url, response.status, response.reason, str(response.headers)

        (is_refused, *head), content = responses.get(f"{url} {data!r}", send)
        replayed = _ReplayedResponse(content, *head)
        if is_refused:
            raise HTTPError(replayed.url, replayed.status, replayed.reason, replayed.headers, replayed)
        return replayed

    def sent(original: Any, adapter: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        if not responses.applies:
            return original(adapter, request, *args, **kwargs)
        from urllib3 import HTTPResponse as Response

        def send(body: IO[bytes]) -> tuple[Any, ...]:
            raw = original(adapter, request, *args, **kwargs).raw
            for chunk in iter(lambda: raw.read(1 << 20, decode_content=False), b""):
                body.write(chunk)
            return list(raw.headers.items()), raw.status, raw.reason

        key = f"{request.method} {request.url} {request.headers.get('Range')}"
        (headers, status, reason), content = responses.get(key, send)
        method = request.method
        raw = Response(content, headers, status, reason=reason, preload_content=False, request_method=method)
        return adapter.build_response(request, raw)

    with attached(declarations.URL_OPENED, wrapping(opened)), _attached_to_requests(wrapping(sent)):
        yield


@contextmanager
def _attached_to_requests(make: Make) -> Iterator[None]:
    """Attach the hook of the package requests now, or when the script imports it: that takes 0.2 s."""
    with ExitStack() as stack:

        def attach(adapters: Any) -> None:
            stack.enter_context(attached_to(adapters.HTTPAdapter, declarations.REQUEST_SENT, make))

        if "requests.adapters" in sys.modules:
            attach(sys.modules["requests.adapters"])
        else:
            hook = _WhenImported("requests.adapters", attach)
            sys.meta_path.insert(0, hook)
            stack.callback(hook.remove)
        yield


class _ReplayedResponse(HTTPResponse):
    """An HTTP response whose body is read from a file."""

    def __init__(self, body: IO[bytes], url: str, status: int, reason: str, headers: str) -> None:
        self._body = body
        super().__init__(self)  # type: ignore[arg-type]  # a socket, of which it uses only the file
        self.url, self.code, self.status, self.reason = url, status, status, reason
        self.headers = self.msg = parse_headers(io.BytesIO(headers.encode("iso-8859-1")))
        self.version, self.chunked, self.will_close = 11, False, True
        self.length = os.fstat(body.fileno()).st_size

    def makefile(self, _: str) -> IO[bytes]:
        """Return the body, like a socket."""
        return self._body


class _WhenImported(MetaPathFinder):
    """An import hook that calls `then` with the module `name` after its import."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name, self._then = name, then

    def find_spec(self, fullname: str, *_: Any) -> ModuleSpec | None:
        """Find the module as usual, and call the function after its execution."""
        if fullname != self._name:
            return None
        self.remove()
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def then(module: ModuleType) -> None:
            execute(module)
            self._then(module)

        spec.loader.exec_module = then  # type: ignore[method-assign]
        return spec

    def remove(self) -> None:
        """Stop waiting for the import."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
