"""The two ways in which Python code asks the network, urllib and requests: asked by rank 0 for all copies."""

import importlib.util
import io
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPResponse, parse_headers
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import IO, Any
from unittest.mock import patch
from urllib.error import HTTPError
from urllib.request import OpenerDirector, Request

from samestep.autopilot.common import CommonFolder
from samestep.autopilot.fetching import Fetched
from samestep.world.world import World

_SCHEMES = ("http:", "https:")


@contextmanager
def asked_once(world: World, folder: CommonFolder) -> Iterator[None]:
    """Within, rank 0 alone asks the network; the other copies of the script get its answers.

    That is what goes through urllib (`urlopen`, `urlretrieve`, `torch.hub`, torchvision) and requests.

    Args:
        world: the ranks.
        folder: through which they get them.
    """
    fetched = Fetched(folder, world.place.rank)
    with ExitStack() as stack:

        def adapt(adapters: Any) -> None:
            send = _sending(adapters.HTTPAdapter.send, fetched)
            stack.enter_context(patch.object(adapters.HTTPAdapter, "send", send))

        stack.enter_context(patch.object(OpenerDirector, "open", _opening(OpenerDirector.open, fetched)))
        if "requests.adapters" in sys.modules:
            adapt(sys.modules["requests.adapters"])
        else:  # it takes 0.2 s to load, and few scripts need it
            hook = _WhenImported("requests.adapters", adapt)
            sys.meta_path.insert(0, hook)
            stack.callback(hook.forget)
        yield


def _opening(original: Callable[..., Any], fetched: Fetched) -> Callable[..., Any]:
    def open_(opener: OpenerDirector, fullurl: Any, data: Any = None, *args: Any, **kwargs: Any) -> Any:
        url = fullurl.full_url if isinstance(fullurl, Request) else fullurl
        if not fetched.applies or not str(url).startswith(_SCHEMES):
            return original(opener, fullurl, data, *args, **kwargs)

        def ask(body: IO[bytes]) -> tuple[Any, ...]:
            try:
                answer = original(opener, fullurl, data, *args, **kwargs)
            except HTTPError as refused:  # an answer too
                shutil.copyfileobj(refused, body)
                return True, refused.url, refused.code, str(refused.reason), str(refused.headers)
            with answer:
                shutil.copyfileobj(answer, body)
            return False, answer.url, answer.status, answer.reason, str(answer.headers)

        (is_refused, *head), content = fetched.once(f"{url} {data!r}", ask)
        answer = _Replayed(content, *head)
        if is_refused:
            raise HTTPError(answer.url, answer.status, answer.reason, answer.headers, answer)
        return answer

    return open_


def _sending(original: Callable[..., Any], fetched: Fetched) -> Callable[..., Any]:
    def send(adapter: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        if not fetched.applies:
            return original(adapter, request, *args, **kwargs)
        from urllib3 import HTTPResponse

        def ask(body: IO[bytes]) -> tuple[Any, ...]:
            raw = original(adapter, request, *args, **kwargs).raw
            for chunk in iter(lambda: raw.read(1 << 20, decode_content=False), b""):
                body.write(chunk)
            return list(raw.headers.items()), raw.status, raw.reason

        question = f"{request.method} {request.url} {request.headers.get('Range')}"
        (headers, status, reason), content = fetched.once(question, ask)
        raw = HTTPResponse(
            content, headers, status, reason=reason, preload_content=False, request_method=request.method
        )
        return adapter.build_response(request, raw)

    return send


class _Replayed(HTTPResponse):
    """An answer of http whose body is read from a file."""

    def __init__(self, body: IO[bytes], url: str, status: int, reason: str, headers: str) -> None:
        self._body = body
        super().__init__(self)  # type: ignore[arg-type]  # a socket, of which it wants the file only
        self.url, self.code, self.status, self.reason = url, status, status, reason
        self.headers = self.msg = parse_headers(io.BytesIO(headers.encode("iso-8859-1")))
        self.version, self.chunked, self.will_close = 11, False, True
        self.length = os.fstat(body.fileno()).st_size

    def makefile(self, _: str) -> IO[bytes]:
        """Return the body, as a socket would."""
        return self._body


class _WhenImported(MetaPathFinder):
    """Does something to a module once it has been imported.

    Args:
        name: of the module.
        then: what.
    """

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name, self._then = name, then

    def find_spec(self, fullname: str, *_: Any) -> ModuleSpec | None:
        """Find the module as anybody would, and see to it once it is there."""
        if fullname != self._name:
            return None
        self.forget()
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def then(module: ModuleType) -> None:
            execute(module)
            self._then(module)

        spec.loader.exec_module = then  # type: ignore[method-assign]
        return spec

    def forget(self) -> None:
        """Look no more."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
