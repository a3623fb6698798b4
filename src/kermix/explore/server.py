"""The local server of the page: who may ask, what may be asked, and how it ends.

Every address begins with a token that nobody else knows, the Host header must name this machine,
and requests that a browser makes for another page are refused, so that no other page can talk to
it. Only files of the page itself are sent, from a fixed list.
"""

import hmac
import ipaddress
import json
import logging
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from importlib import resources
from typing import Any
from urllib.parse import urlsplit

from kermix.errors import KermixError, MissingExtraError, OptionError, RunError
from kermix.explore.session import DRAWS, Explored
from kermix.files import finite_json
from kermix.pages.page import render

__all__ = ["Address", "application", "free_socket", "server_of"]

try:
    import anyio
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
    from starlette.routing import Route
    from starlette.types import ASGIApp, Receive, Scope, Send
except ImportError as missing:
    raise MissingExtraError(
        f"kermix explore needs {missing.name}: pip install 'kermix[explore]'."
    ) from None

SCRIPTS = ("shared.js", "ask.js", "parts.js", "server.js", "start.js")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
LOCAL = ("127.0.0.1", "localhost", "::1")
LARGEST_BODY = 1 << 20
AT_ONCE, FILES_AT_ONCE = 2, 1  # questions and files that are computed together; others wait
CLOSED = 499  # of answers that nobody waits for any more


class Address:
    """Where the page is.

    Args:
        host: What the server listens at.
        port: Of the socket.
        token: What addresses begin with; a new one by default.
    """

    def __init__(self, host: str, port: int, token: str | None = None) -> None:
        self.host, self.port = host, port
        self.token = token or secrets.token_urlsafe(16)

    @property
    def is_local(self) -> bool:
        """Whether this machine alone can reach it."""
        return self.host in LOCAL

    @property
    def url(self) -> str:
        """What to open in a browser."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        name = f"[{host}]" if ":" in host else host
        return f"http://{name}:{self.port}/{self.token}/"

    def allows_host(self, header: str) -> bool:
        """Whether a Host header names this server, rather than a name made to point here.

        Where other machines may ask, their address for this one is a number, which nobody can
        redirect, or the name that was given.
        """
        try:
            parts = urlsplit(f"//{header}")
            name, port = parts.hostname, parts.port
        except ValueError:
            return False
        if name is None or "@" in header or parts.netloc != header or (port or 80) != self.port:
            return False
        if name in LOCAL or name == self.host.lower():
            return True
        return not self.is_local and _is_number(name)


def _is_number(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Guard:
    """Refuses what was not asked by the page itself, before anything looks at it."""

    def __init__(self, inner: ASGIApp, address: Address, ending: threading.Event) -> None:
        self.inner, self.address, self.ending = inner, address, ending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            return
        request = Request(scope)
        refused = self._refused(request)
        if refused is not None:
            await PlainTextResponse(refused, 403, HEADERS)(scope, receive, send)
            return
        token, path = scope["path"][1:].partition("/")[::2]
        own = hmac.compare_digest(token.encode(), self.address.token.encode())
        if not own or not scope["path"][1:].startswith(f"{token}/"):
            told = "Open the full address that kermix explore printed.\n"
            await PlainTextResponse(told, 404, HEADERS)(scope, receive, send)
            return
        inner = {**scope, "path": f"/{path}", "raw_path": f"/{path}".encode()}
        with suppress(Ended):
            await self.inner(inner, receive, send)

    def _refused(self, request: Request) -> str | None:
        headers = request.headers
        if len(headers.getlist("host")) != 1 or not self.address.allows_host(headers["host"]):
            return "The Host header names another machine.\n"
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{headers['host']}":
            return "Requested by another page.\n"
        # Links on other pages may open this one, which they cannot look into.
        opened = headers.get("sec-fetch-mode") == "navigate" and request.method == "GET"
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not opened:
            return "Requested by another page.\n"
        return None


class Ended(Exception):
    """The server ends, and what is left of an answer is not needed any more."""


class Places:
    """Threads that compute answers: some for questions, and one for files of draws.

    A file takes seconds, so those who wait for one do not keep others from asking. It is drawn
    part by part, and between two parts its place is the next one's.
    """

    def __init__(self) -> None:
        self._limits: dict[bool, anyio.CapacityLimiter] = {}

    async def worked(self, function: Callable[..., Any], *given: Any, file: bool = False) -> Any:
        """What a function returns, in a thread of its own."""
        if file not in self._limits:  # they need the event loop
            self._limits[file] = anyio.CapacityLimiter(FILES_AT_ONCE if file else AT_ONCE)
        return await anyio.to_thread.run_sync(function, *given, limiter=self._limits[file])


def application(explored: Explored, address: Address) -> Guard:
    """The page and what it asks.

    Args:
        explored: What is asked.
        address: Where the page is.
    """
    places, ending = Places(), threading.Event()

    def answer(function: Callable[..., Any], *names: str) -> Callable[..., Awaitable[Response]]:
        """An endpoint: a function of some members of the body."""

        async def endpoint(request: Request) -> Response:
            try:
                body = await _body(request, names) if names else {}
                found = await places.worked(function, *(body[name] for name in names))
            except KermixError as error:
                return _refusal(error)
            except ClientDisconnect:
                return Response(status_code=CLOSED)
            text = json.dumps(finite_json(found), allow_nan=False, separators=(",", ":"))
            return Response(text, 200, HEADERS, "application/json")

        return endpoint

    def go_on(rows: int) -> None:
        if ending.is_set():
            raise Ended

    async def drawn(request: Request) -> Response:
        try:
            body = await _body(request, ("given", "n", "seed", "safe"))
            given, n, seed, safe = (body[name] for name in ("given", "n", "seed", "safe"))
            pieces = explored.drawn_file(given, n, seed, safe, go_on)
            first = await places.worked(next, pieces, file=True)
        except KermixError as error:
            return _refusal(error)
        except ClientDisconnect:
            return Response(status_code=CLOSED)

        async def sent() -> AsyncIterator[bytes]:
            yield first
            while piece := await places.worked(next, pieces, b"", file=True):
                yield piece

        named = {"Content-Disposition": f'attachment; filename="{DRAWS}"'}
        return StreamingResponse(sent(), 200, {**HEADERS, **named}, "text/csv")

    def page(data: str, kind: str) -> Callable[..., Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            return Response(data, 200, HEADERS, kind)

        return endpoint

    def keep() -> dict[str, Any]:
        explored.keep()
        return explored.summary()

    asks = explored.questions
    routes = [
        Route("/", page(render("explore.html.j2", title="kermix explore", scripts=SCRIPTS),
                        "text/html")),
        Route("/explore.css", page(render("explore.css.j2"), "text/css")),
        *(Route(f"/{name}", page((resources.files("kermix.explore") / "page" / name).read_text(),
                                 "text/javascript")) for name in SCRIPTS),
        Route("/api/state", answer(explored.summary)),
        Route("/api/model", answer(lambda: asks().described)),
        Route("/api/check", answer(explored.check)),
        Route("/api/outliers", answer(explored.outliers)),
        Route("/api/watch", answer(explored.watched)),
        Route("/api/ask", answer(lambda given: asks().ask(given), "given"), methods=["POST"]),
        Route("/api/likely", answer(lambda g: asks().likely(g), "given"), methods=["POST"]),
        Route("/api/draws", answer(lambda *a: asks().shown_draws(*a), "given", "n", "seed"),
              methods=["POST"]),
        Route(f"/api/{DRAWS}", drawn, methods=["POST"]),
        Route("/api/keep", answer(keep), methods=["POST"]),
    ]  # fmt: skip
    app = Starlette(routes=routes)
    app.router.redirect_slashes = False  # to an address without the token
    return Guard(app, address, ending)


def _refusal(error: KermixError) -> Response:
    status = 409 if isinstance(error, RunError) else 400
    return JSONResponse({"error": str(error)}, status, HEADERS)


async def _body(request: Request, names: tuple[str, ...]) -> dict[str, Any]:
    """The members of a request's body, all of them and no others."""
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > LARGEST_BODY:
            raise OptionError(f"The request has more than {LARGEST_BODY:,} bytes.")
    try:
        body = json.loads(data)
        json.dumps(body, ensure_ascii=False).encode()  # halves of a character are no text
    except UnicodeEncodeError:
        raise OptionError("The request contains half a character (a lone surrogate).") from None
    except ValueError:  # also what is no Unicode
        raise OptionError("The request is not JSON.") from None
    except RecursionError:
        raise OptionError("The request is nested too deeply.") from None
    if not isinstance(body, dict) or set(body) != set(names):
        raise OptionError(
            f"The request must be an object with {', '.join(names)} and nothing else."
        )
    return body


def free_socket(host: str, port: int, ports: int = 50) -> socket.socket:
    """A socket that listens at a port, or at the next that is not in use.

    Args:
        host: A number or name of this machine.
        port: The first that is tried; 0 for any.
        ports: How many are tried, one after the other.
    """
    if not 0 <= port < 1 << 16:
        raise OptionError(f"--port {port}: must be a number from 0 to 65535.")
    try:
        family, *_, found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise OptionError(
            f"--host {host}: not an address of this machine ({error.strerror})."
        ) from None
    last = min(port + ports, 1 << 16) if port else 1
    told = ""
    for number in range(port, last):
        own = socket.socket(family, socket.SOCK_STREAM)
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            own.bind((found[0], number))
            own.listen(128)  # SO_REUSEADDR lets two bind, but not two listen
        except OSError as error:
            own.close()
            told = str(error.strerror)
            continue
        return own
    raise OptionError(
        f"--host {host} --port {port}: no port from there to {last - 1} can be used ({told})."
    )


class Server(uvicorn.Server):
    """Tells work under way that it ends; answers that are cut off then are no errors to report."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End, after Ctrl-C."""
        assert isinstance(self.config.app, Guard)
        self.config.app.ending.set()
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        await super().shutdown(sockets)


def server_of(app: Guard, grace: int = 2) -> Server:
    """What answers at a socket until Ctrl-C: `server_of(app).run(sockets=[...])`."""
    config = uvicorn.Config(
        app, log_level="error", access_log=False, lifespan="off", ws="none", http="h11",
        loop="asyncio", server_header=False, timeout_graceful_shutdown=grace,
    )  # fmt: skip
    return Server(config)
