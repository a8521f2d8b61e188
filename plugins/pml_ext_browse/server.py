"""The server of ``pml-ext browse``, on localhost.

Pictures are requested by number, never by path. Cross-site requests are rejected before their body is read.
"""

import asyncio
import contextlib
import os
import re
import signal
import socket
import tempfile
import threading
import webbrowser
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from pml_ext.errors import ConfigError, DataError, PmlExtError, StoppedError, needs_extra, shortened
from pml_ext_train.training import handle_signals

from .collection import BrowsedRun
from .page import CARDS, PAIRS, Page
from .uploads import MOST

with needs_extra("browse", "pml-ext browse"):
    import python_multipart  # noqa: F401  # Starlette reads forms with it
    import uvicorn
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.datastructures import FormData, QueryParams, UploadFile
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.middleware.base import BaseHTTPMiddleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles

HOST = "127.0.0.1"
SIZES = (160, 480)  # pixels of a picture's longer side
MAX_UPLOAD = 64 << 20  # bytes of a photograph
MAX_UPLOADS = 4 * MAX_UPLOAD  # bytes of those that are dropped together
MAX_NAMES = 1 << 20  # bytes
MAX_CHOICES = 8 << 20  # bytes
_HEADERS = {
    "content-security-policy": "default-src 'none'; img-src 'self' data:; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "same-origin",  # with "no-referrer", a browser's uploads would come from the origin "null"
    "x-content-type-options": "nosniff",
}


def application(collections: Sequence[BrowsedRun], uploads: Path) -> Starlette:
    """An ASGI application that serves collections and saves uploaded photographs in a folder."""
    site = _Site(collections, uploads)
    routes = [
        *(
            Route(path, site.view, methods=["GET"])
            for path in ("/", "/clusters", "/map", "/answers", "/labels", "/copies")
        ),
        Route("/copies", site.copies, methods=["POST"]),
        Route("/copies/state", site.copies_state),
        Route("/copies/choice", site.choice, methods=["POST"]),
        Mount("/static", StaticFiles(directory=Path(__file__).parent / "static")),
        Route("/upload", site.upload, methods=["POST"]),
        Route("/names", site.names, methods=["POST"]),
        Route("/names/keep", site.names, methods=["POST"]),
        Route("/labels", site.labels, methods=["POST"]),
        Route("/labels/keep", site.labels, methods=["POST"]),
        Route("/thumbnail/{run}/{number}/{size}", site.picture),
    ]

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        site.page.copies.stop()

    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])  # against DNS rebinding
    own = Middleware(BaseHTTPMiddleware, dispatch=_refuse_other_sites)
    problems = dict.fromkeys((PmlExtError, OSError, 400, 411, 413), site.problem)
    return Starlette(routes=routes, middleware=[hosts, own], exception_handlers=problems, lifespan=lifespan)


async def _refuse_other_sites(request: Request, call_next: Any) -> Response:
    origin = request.headers.get("origin")
    site = request.headers.get("sec-fetch-site", "none")
    response: Response = PlainTextResponse("requests from other sites are refused", 403)
    if origin in (None, f"http://{request.headers.get('host')}") and site in ("none", "same-origin"):
        response = await call_next(request)
    response.headers.update(_HEADERS)
    return response


class _Site:
    """The answers to requests; one query is computed at a time."""

    def __init__(self, collections: Sequence[BrowsedRun], uploads: Path) -> None:
        self.collections = collections
        self.page = Page(collections, uploads)
        self._computing = asyncio.Lock()

    def problem(self, _: Request, error: Exception) -> Response:
        """Show an error: a wrong form or file, or a full disk."""
        text, status = (error.detail, error.status_code) if isinstance(error, HTTPException) else (str(error), 400)
        return HTMLResponse(self.page.problem(text), status)

    async def view(self, request: Request) -> Response:
        """Show a tab of the page."""
        tab = request.url.path.strip("/") or "query"
        async with self._computing:
            text, status = await run_in_threadpool(self.page.draw, tab, _texts(request.query_params))
        return HTMLResponse(text, status, {"cache-control": "no-store"})

    async def upload(self, request: Request) -> Response:
        """Keep photographs, and redirect to their answers."""
        most = f"{MAX_UPLOAD >> 20} MB, and several {MAX_UPLOADS >> 20} MB together, by the header Content-Length."
        async with _form(request, MAX_UPLOADS, f"A photograph may have at most {most}", MOST, 2) as form:
            photographs = [each for each in form.getlist("photo") if isinstance(each, UploadFile)]
            options = {"k": str(form.get("k", "")), "folder": str(form.get("folder", ""))}
            async with self._computing:  # keep() deletes the oldest upload, which a query may be reading
                options["upload"] = await run_in_threadpool(self._save, photographs)
        given = {name: value for name, value in options.items() if value}
        return RedirectResponse(f"/?{urlencode(given)}", 303)

    def _save(self, photographs: list[UploadFile]) -> str:
        """Keep photographs, and return their tokens; files that are not images are reported."""
        tokens = []
        problems = []
        for photograph in photographs:
            name = Path(photograph.filename or "photograph").name
            try:
                if (photograph.size or 0) > MAX_UPLOAD:
                    raise DataError(f"{shortened(name, 200)}: more than {MAX_UPLOAD >> 20} MB; make it smaller")
                tokens.append(self.page.uploads.keep(photograph.file, name))
            except DataError as error:
                problems.append(str(error))
                tokens.append(self.page.uploads.refuse(name, str(error)))
        if len(problems) == len(photographs):
            raise DataError("; ".join(problems) or "no photograph was sent")
        return ",".join(tokens)

    async def names(self, request: Request) -> Response:
        """The table of the classes that somebody typed below clusters."""
        text = "Too many names, or names that are too long."
        keep, table = self.page.keep_names, self.page.named
        return await self._decided(request, text, CARDS + 5, keep, table, "classes.csv")

    async def labels(self, request: Request) -> Response:
        """The table of all labels, after what somebody has decided."""
        keep, table = self.page.keep_labels, self.page.labels
        return await self._decided(request, "Too many labels.", PAIRS + 3, keep, table, "labels.csv")

    async def _decided(
        self,
        request: Request,
        too_long: str,
        fields: int,
        keep: Callable[[dict[str, str]], object],
        table: Callable[[dict[str, str]], str],
        name: str,
    ) -> Response:
        """Keep what a form has, and return it as a table, unless the path ends in ``/keep``."""
        async with _form(request, MAX_NAMES, too_long, 0, fields) as form, self._computing:
            if request.url.path.endswith("/keep"):
                await run_in_threadpool(keep, _texts(form))
                return Response(status_code=204)
            return _file(await run_in_threadpool(table, _texts(form)), name, "text/csv")

    async def copies(self, request: Request) -> Response:
        """Begin a search for copies, or stop the running one."""
        async with _form(request, MAX_NAMES, "The form is too long.", 0, 9) as form:
            options = _texts(form)
        if "stop" in options:
            self.page.copies.stop()
        else:
            await run_in_threadpool(self.page.begin_copies, options)
        folder = options.get("folder")
        return RedirectResponse(f"/copies?{urlencode({'folder': folder})}" if folder else "/copies", 303)

    async def copies_state(self, _: Request) -> Response:
        """The progress of the search for copies."""
        state = self.page.copies.state
        shown = {"phase": state.phase, "read": state.read, "images": state.images}
        return JSONResponse(shown, headers={"cache-control": "no-store"})

    async def choice(self, request: Request) -> Response:
        """The copies with what somebody keeps, as a file."""
        async with _form(request, MAX_CHOICES, "Too many groups.", 0, MAX_CHOICES) as form:
            shown = [str(key) for key in form.getlist("shown")]
            kept = [str(text) for text in form.getlist("keep")]
            kind = "json" if form.get("format") == "json" else "csv"
        text = await run_in_threadpool(self.page.copies.as_text, shown, kept, kind)
        return _file(text, f"copies.{kind}", {"json": "application/json", "csv": "text/csv"}[kind])

    def picture(self, request: Request) -> Response:
        """A thumbnail."""
        parts = [request.path_params[name] for name in ("run", "number", "size")]
        if all(re.fullmatch(r"[0-9]{1,9}", part) for part in parts):
            run, number, size = map(int, parts)
            if run < len(self.collections) and number < len(self.collections[run]) and size in SIZES:
                content = self.collections[run].jpeg(number, size)
                return Response(content, media_type="image/jpeg", headers={"cache-control": "private, max-age=600"})
        return PlainTextResponse("no such picture", 404)


@contextlib.asynccontextmanager
async def _form(request: Request, most: int, too_long: str, files: int, fields: int) -> AsyncIterator[FormData]:
    """Read a form of at most ``most`` bytes; HTTPException with ``too_long`` for a longer one."""
    length = request.headers.get("content-length", "")
    if not (length.isdecimal() and len(length) < 12 and int(length) <= most):
        raise HTTPException(413 if length else 411, too_long)
    async with request.form(max_files=files, max_fields=fields) as form:
        yield form


def _texts(form: FormData | QueryParams) -> dict[str, str]:
    """The fields of a form or an address; several values of a field are joined by commas."""
    texts: dict[str, str] = {}
    for name, value in form.multi_items():
        if isinstance(value, str):
            texts[name] = f"{texts[name]},{value}" if name in texts else value
    return texts


def _file(text: str, name: str, media_type: str) -> Response:
    """A file that the browser saves; path bytes outside UTF-8 stay unchanged."""
    headers = {"content-disposition": f'attachment; filename="{name}"', "cache-control": "no-store"}
    return Response(text.encode("utf-8", "surrogateescape"), media_type=media_type, headers=headers)


def listening(port: int) -> socket.socket:
    """A socket bound to a port of localhost, or to a free one for 0."""
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        why = os.strerror(error.errno or 0)  # str(error) repeats the address
        raise ConfigError(f"--port {port} is not available ({why}); type another one, or --port 0 for any") from None


def serve(
    collections: Sequence[BrowsedRun], bound: socket.socket, open_browser: bool, ready: Callable[[str], None]
) -> None:
    """Serve collections until Ctrl-C or another signal; call ``ready`` with the address.

    Uploaded photographs are deleted at the end.
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
    """Let SIGHUP end a server as SIGTERM does."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not hasattr(signal, "SIGHUP") or signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        yield
        return
    before = signal.signal(signal.SIGHUP, server.handle_exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
