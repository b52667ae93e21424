"""Lets rank 0 send the requests of urllib and of the package requests for all ranks."""

import importlib.util
import io
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from http.client import HTTPResponse, parse_headers
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import IO, Any
from urllib.error import HTTPError
from urllib.request import OpenerDirector, Request

from samestep.autopilot.network.shared_requests import SharedResponses
from samestep.autopilot.script.shared_folder import CommonFolder
from samestep.hooks import declarations
from samestep.hooks.registry import attached, attached_to
from samestep.ranks.world.protocol import World

_SCHEMES = ("http:", "https:")


@contextmanager
def shared_network(world: World, folder: CommonFolder) -> Iterator[None]:
    """Let only rank 0 use the network; the other ranks of the script get its responses.

    This holds for urllib (`urlopen`, `urlretrieve`, `torch.hub`, torchvision) and the package requests.

    Args:
        world: the ranks.
        folder: holds the responses.
    """
    responses = SharedResponses(folder, world.place.rank)
    with ExitStack() as stack:

        def adapt(adapters: Any) -> None:
            make = partial(_sending, responses=responses)
            stack.enter_context(attached_to(adapters.HTTPAdapter, declarations.REQUEST_SENT, make))

        stack.enter_context(attached(declarations.URL_OPENED, partial(_opening, responses=responses)))
        if "requests.adapters" in sys.modules:
            adapt(sys.modules["requests.adapters"])
        else:  # its import takes 0.2 s, and few scripts need it
            hook = _WhenImported("requests.adapters", adapt)
            sys.meta_path.insert(0, hook)
            stack.callback(hook.remove)
        yield


def _opening(original: Callable[..., Any], responses: SharedResponses) -> Callable[..., Any]:
    def open_(opener: OpenerDirector, fullurl: Any, data: Any = None, *args: Any, **kwargs: Any) -> Any:
        url = fullurl.full_url if isinstance(fullurl, Request) else fullurl
        if not responses.applies or not str(url).startswith(_SCHEMES):
            return original(opener, fullurl, data, *args, **kwargs)

        def request(body: IO[bytes]) -> tuple[Any, ...]:
            try:
                response = original(opener, fullurl, data, *args, **kwargs)
            except HTTPError as refused:  # it is a response, too
                shutil.copyfileobj(refused, body)
                return True, refused.url, refused.code, str(refused.reason), str(refused.headers)
            with response:
                shutil.copyfileobj(response, body)
            return False, response.url, response.status, response.reason, str(response.headers)

        (is_refused, *head), content = responses.get(f"{url} {data!r}", request)
        replayed = _ReplayedResponse(content, *head)
        if is_refused:
            raise HTTPError(replayed.url, replayed.status, replayed.reason, replayed.headers, replayed)
        return replayed

    return open_


def _sending(original: Callable[..., Any], responses: SharedResponses) -> Callable[..., Any]:
    def send(adapter: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        if not responses.applies:
            return original(adapter, request, *args, **kwargs)
        from urllib3 import HTTPResponse

        def fetch(body: IO[bytes]) -> tuple[Any, ...]:
            raw = original(adapter, request, *args, **kwargs).raw
            for chunk in iter(lambda: raw.read(1 << 20, decode_content=False), b""):
                body.write(chunk)
            return list(raw.headers.items()), raw.status, raw.reason

        key = f"{request.method} {request.url} {request.headers.get('Range')}"
        (headers, status, reason), content = responses.get(key, fetch)
        raw = HTTPResponse(
            content, headers, status, reason=reason, preload_content=False, request_method=request.method
        )
        return adapter.build_response(request, raw)

    return send


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
    """An import hook that calls a function with a module after its import.

    Args:
        name: the name of the module.
        then: the function.
    """

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
