"""The server of the page of ``pml-ext browse``, on localhost, so that only this machine can reach it.

A picture is requested by its image's number in the index, never by a path. A cross-site request is rejected before its
body is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import tempfile
import threading
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from pml_ext.tool import ConfigError, DataError, PmlExtError, StoppedError, handle_signals, needs_extra

from .collection import BrowsedRun
from .page import CARDS, Page

with needs_extra("browse", "pml-ext browse"):
    import python_multipart  # noqa: F401  # Starlette reads forms with it
    import uvicorn
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.datastructures import UploadFile
    from starlette.middleware import Middleware
    from starlette.middleware.base import BaseHTTPMiddleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles

HOST = "127.0.0.1"
SIZES = (160, 480)  # pixels of a picture's longer side
MAX_UPLOAD = 64 << 20  # bytes
MAX_NAMES = 1 << 20  # bytes
_HEADERS = {
    "content-security-policy": "default-src 'none'; img-src 'self' data:; script-src 'self'; style-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "same-origin",  # with "no-referrer", a browser's uploads would come from the origin "null"
    "x-content-type-options": "nosniff",
}


def application(collections: Sequence[BrowsedRun], uploads: Path) -> Starlette:
    """Return an ASGI application that serves the page of collections and saves uploaded photographs in a folder."""
    page = Page(collections, uploads)
    computing = asyncio.Lock()  # one query at a time

    async def refuse_other_sites(request: Request, call_next: Any) -> Response:
        origin = request.headers.get("origin")
        site = request.headers.get("sec-fetch-site", "none")
        own = origin in (None, f"http://{request.headers.get('host')}") and site in ("none", "same-origin")
        if own:
            response = await call_next(request)
        else:
            response = PlainTextResponse("requests from other sites are refused", 403)
        response.headers.update(_HEADERS)
        return response  # type: ignore[no-any-return]

    async def view(request: Request) -> Response:
        tab = request.url.path.strip("/") or "query"
        async with computing:
            text, status = await run_in_threadpool(page.draw, tab, request.query_params)
        return HTMLResponse(text, status, {"cache-control": "no-store"})

    async def upload(request: Request) -> Response:
        length = request.headers.get("content-length", "")
        if not (length.isdecimal() and len(length) < 12 and int(length) <= MAX_UPLOAD):
            text = f"A photograph may have at most {MAX_UPLOAD >> 20} MB, by the header Content-Length."
            return HTMLResponse(page.problem(text), 413 if length else 411)
        try:
            async with request.form(max_files=1, max_fields=1) as form:
                photo = form.get("photo")
                k = str(form.get("k", ""))
                if not isinstance(photo, UploadFile):
                    raise DataError("no photograph was sent")
                async with computing:  # keep() deletes the oldest upload, which a query may be reading
                    token = await run_in_threadpool(page.keep, photo.file, Path(photo.filename or "photograph").name)
        except (DataError, OSError) as error:  # not an image, or the disk is full
            return HTMLResponse(page.problem(str(error)), 400)
        return RedirectResponse(f"/?{urlencode({'upload': token, 'k': k})}", 303)

    async def names(request: Request) -> Response:
        length = request.headers.get("content-length", "")
        if not (length.isdecimal() and len(length) < 12 and int(length) <= MAX_NAMES):
            return HTMLResponse(page.problem("Too many names, or names that are too long."), 413 if length else 411)
        try:
            async with request.form(max_files=0, max_fields=CARDS + 2) as form, computing:
                options = {name: value for name, value in form.items() if isinstance(value, str)}
                table = await run_in_threadpool(page.named, options)
        except PmlExtError as error:
            return HTMLResponse(page.problem(str(error)), 400)
        headers = {"content-disposition": 'attachment; filename="classes.csv"', "cache-control": "no-store"}
        return Response(table.encode("utf-8", "surrogateescape"), media_type="text/csv", headers=headers)

    def picture(request: Request) -> Response:
        parts = [request.path_params[name] for name in ("run", "number", "size")]
        if not all(re.fullmatch(r"[0-9]{1,9}", part) for part in parts):
            return PlainTextResponse("no such picture", 404)
        run, number, size = map(int, parts)
        if run >= len(collections) or number >= len(collections[run]) or size not in SIZES:
            return PlainTextResponse("no such picture", 404)
        content = collections[run].jpeg(number, size)
        return Response(content, media_type="image/jpeg", headers={"cache-control": "private, max-age=600"})

    routes = [
        Route("/", view),
        Route("/clusters", view),
        Route("/map", view),
        Route("/answers", view),
        Mount("/static", StaticFiles(directory=Path(__file__).parent / "static")),
        Route("/upload", upload, methods=["POST"]),
        Route("/names", names, methods=["POST"]),
        Route("/thumbnail/{run}/{number}/{size}", picture),
    ]
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])  # against DNS rebinding
    return Starlette(routes=routes, middleware=[hosts, Middleware(BaseHTTPMiddleware, dispatch=refuse_other_sites)])


def listening(port: int) -> socket.socket:
    """Return a socket bound to a port of localhost, or to a free one for 0; raise ConfigError if it is taken."""
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        why = os.strerror(error.errno or 0)  # str(error) repeats the address
        raise ConfigError(f"--port {port} is not available ({why}); type another one, or --port 0 for any") from None


def serve(
    collections: Sequence[BrowsedRun], bound: socket.socket, open_browser: bool, ready: Callable[[str], None]
) -> None:
    """Serve the page of collections on a socket until Ctrl-C or another signal; call ``ready`` with its address.

    Uploaded photographs are deleted in the end.
    """
    address = f"http://{HOST}:{bound.getsockname()[1]}"
    with (
        contextlib.suppress(KeyboardInterrupt, StoppedError),
        handle_signals(),
        tempfile.TemporaryDirectory(prefix="pml-ext-browse-") as uploads,
    ):
        app = application(collections, Path(uploads))
        ready(address)  # the socket listens already: an early request waits for the server
        if open_browser:
            webbrowser.open(address)
        settings = uvicorn.Config(app, log_level="critical", access_log=False, timeout_graceful_shutdown=1, ws="none")
        server = uvicorn.Server(settings)
        with _ended_by_hangup(server):
            server.run(sockets=[bound])


@contextlib.contextmanager
def _ended_by_hangup(server: uvicorn.Server) -> Iterator[None]:
    """Let SIGHUP end a server as uvicorn lets SIGTERM: an event loop drops errors of callbacks."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not hasattr(signal, "SIGHUP") or signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        yield
        return
    before = signal.signal(signal.SIGHUP, server.handle_exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
