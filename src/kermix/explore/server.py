"""The local server of the page: who may ask, what may be asked, and how it ends.

Every address begins with a token that nobody else knows, the Host header must name this machine,
and requests that a browser makes for another page are refused, so that no other page can talk to
it. Only files of the page itself are sent, from a fixed list.
"""

import hmac
import ipaddress
import json
import secrets
import socket
import tempfile
from collections.abc import Awaitable, Callable
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kermix.errors import KermixError, MissingExtraError, OptionError, RunError
from kermix.explore.session import Explored
from kermix.files import finite_json

try:
    import anyio
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route
    from starlette.types import ASGIApp, Receive, Scope, Send
except ImportError as missing:
    raise MissingExtraError(
        f"kermix explore needs {missing.name}: pip install 'kermix[explore]'."
    ) from None

__all__ = ["Address", "application", "free_socket", "server_of"]

FILES = {
    "": ("index.html", "text/html"),
    "explore.css": ("explore.css", "text/css"),
    **{name: (name, "text/javascript") for name in
       ("charts.js", "ask.js", "parts.js", "server.js", "start.js")},
}  # fmt: skip
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
PORTS = 50  # that are tried, one after the other
LARGEST_BODY = 1 << 20
AT_ONCE = 2  # questions that are computed together; others wait
GRACE = 2  # seconds for answers on their way when the server ends


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

    def __init__(self, inner: ASGIApp, address: Address) -> None:
        self.inner, self.address = inner, address

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
            told = "Open the address that kermix explore has printed, with all that is in it.\n"
            await PlainTextResponse(told, 404, HEADERS)(scope, receive, send)
            return
        inner = {**scope, "path": f"/{path}", "raw_path": f"/{path}".encode()}
        await self.inner(inner, receive, send)

    def _refused(self, request: Request) -> str | None:
        headers = request.headers
        if len(headers.getlist("host")) != 1 or not self.address.allows_host(headers["host"]):
            return "The Host header names another machine.\n"
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{headers['host']}":
            return "Asked by another page.\n"
        # Links on other pages may open this one, which they cannot look into.
        opened = headers.get("sec-fetch-mode") == "navigate" and request.method == "GET"
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not opened:
            return "Asked by another page.\n"
        return None


def application(explored: Explored, address: Address) -> ASGIApp:
    """The page and what it asks.

    Args:
        explored: What is asked.
        address: Where the page is.
    """
    limiter: list[anyio.CapacityLimiter] = []

    async def worked(function: Callable[..., Any], *arguments: Any) -> Any:
        if not limiter:
            limiter.append(anyio.CapacityLimiter(AT_ONCE))
        return await anyio.to_thread.run_sync(function, *arguments, limiter=limiter[0])

    def answer(function: Callable[..., Any], *names: str) -> Callable[..., Awaitable[Response]]:
        """An endpoint: a function of some members of the body."""

        async def endpoint(request: Request) -> Response:
            try:
                body = await _body(request, names) if names else {}
                found = await worked(function, *(body[name] for name in names))
            except KermixError as error:
                status = 409 if isinstance(error, RunError) else 400
                return JSONResponse({"error": str(error)}, status, HEADERS)
            if isinstance(found, Response):
                return found
            text = json.dumps(finite_json(found), allow_nan=False, separators=(",", ":"))
            return Response(text, 200, HEADERS, "application/json")

        return endpoint

    def drawn(given: Any, n: Any, seed: Any) -> Response:
        with tempfile.TemporaryDirectory(prefix="kermix-explore-") as folder:
            path = Path(folder) / "draws.csv"
            explored.write_draws(path, given, n, seed)
            data = path.read_bytes()
        named = {"Content-Disposition": 'attachment; filename="draws.csv"'}
        return Response(data, 200, {**HEADERS, **named}, "text/csv")

    def page(name: str) -> Callable[..., Awaitable[Response]]:
        file, kind = FILES[name]
        data = (resources.files("kermix.explore") / "page" / file).read_bytes()

        async def endpoint(request: Request) -> Response:
            return Response(data, 200, HEADERS, kind)

        return endpoint

    def keep() -> dict[str, Any]:
        explored.keep()
        return explored.told()

    asks = explored.questions
    routes = [
        *(Route(f"/{name}", page(name)) for name in FILES),
        Route("/api/state", answer(explored.told)),
        Route("/api/model", answer(lambda: asks().described)),
        Route("/api/check", answer(explored.check)),
        Route("/api/odd", answer(explored.odd)),
        Route("/api/watch", answer(explored.watched)),
        Route("/api/ask", answer(lambda given: asks().ask(given), "given"), methods=["POST"]),
        Route("/api/likely", answer(lambda g: asks().likely(g), "given"), methods=["POST"]),
        Route("/api/draws", answer(lambda *a: asks().shown_draws(*a), "given", "n", "seed"),
              methods=["POST"]),
        Route("/api/draws.csv", answer(drawn, "given", "n", "seed"), methods=["POST"]),
        Route("/api/keep", answer(keep), methods=["POST"]),
    ]  # fmt: skip
    return Guard(Starlette(routes=routes), address)


async def _body(request: Request, names: tuple[str, ...]) -> dict[str, Any]:
    """The members of a request's body, all of them and no others."""
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > LARGEST_BODY:
            raise OptionError(f"The question has more than {LARGEST_BODY:,} bytes.")
    try:
        body = json.loads(data)
        json.dumps(body, ensure_ascii=False).encode()  # halves of a character are no text
    except UnicodeEncodeError:
        raise OptionError("The question has half a character (a lone surrogate) in it.") from None
    except ValueError:  # also what is no Unicode
        raise OptionError("The question is no JSON.") from None
    except RecursionError:
        raise OptionError("The question is nested too deeply.") from None
    if not isinstance(body, dict) or set(body) != set(names):
        raise OptionError(f"The question must be an object with {', '.join(names)}, nothing else.")
    return body


def free_socket(host: str, port: int) -> socket.socket:
    """A socket that listens at a port, or at the next that is not in use.

    Args:
        host: A number or name of this machine.
        port: The first that is tried; 0 for any.
    """
    if not 0 <= port < 1 << 16:
        raise OptionError(f"--port {port}: a number from 0 to 65535.")
    try:
        family, *_, found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise OptionError(f"--host {host}: no name of this machine ({error.strerror}).") from None
    last = min(port + PORTS, 1 << 16) if port else 1
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


def server_of(app: ASGIApp) -> uvicorn.Server:
    """What answers at a socket until Ctrl-C: `server_of(app).run(sockets=[...])`."""
    config = uvicorn.Config(
        app, log_level="error", access_log=False, lifespan="off", ws="none", http="h11",
        loop="asyncio", server_header=False, timeout_graceful_shutdown=GRACE,
    )  # fmt: skip
    return uvicorn.Server(config)
