"""Serves the page on localhost: to this machine alone, without a file of it, and without a request that leaves it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
import warnings
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigError, DataError, needs_extra
from .collection import Collection

HOST, PORT = "127.0.0.1", 7860
_UPLOAD = "64mb"  # of a photograph that somebody brings, at most
_SIZES = (160, 480)
_BODY = 1 << 20  # bytes of what the page asks, at most; uploads have a limit of their own
# The browser loads nothing from elsewhere, and no page shows this one in a frame. Gradio makes functions of texts.
_POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; connect-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'self'; object-src 'none'"
)


def listening(port: int = PORT) -> socket.socket:
    """A socket of this machine alone, bound to a port.

    Args:
        port: 0 for a free one.

    Raises:
        ConfigError: the port is taken, or none.
    """
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port {port}: wanted from 0 (any that is free) to 65535")
    there = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        there.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        there.bind((HOST, port))
    except OSError as error:
        there.close()
        raise ConfigError(f"--port {port} cannot be had ({error.strerror}); type another one, or --port 0") from None
    return there


@contextlib.contextmanager
def _private() -> Iterator[Path]:
    """A folder of its own for what is uploaded, gone at the end; no statistics of use, no look for versions."""
    with tempfile.TemporaryDirectory(prefix="pml-ext-browse-") as folder:
        ours = {
            "GRADIO_TEMP_DIR": folder,
            "GRADIO_ANALYTICS_ENABLED": "False",
            "GRADIO_RUN_HISTORY": "False",
            "HF_HUB_OFFLINE": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }
        before = {name: os.environ.get(name) for name in ours}
        os.environ.update(ours)
        try:
            yield Path(folder)
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def application(collections: Sequence[Collection], uploads: Path) -> Any:
    """The page and its pictures, as an ASGI application.

    A picture is asked for by the number of its image in the index, never by a path.

    Args:
        collections: of one folder, one per run.
        uploads: the folder that Gradio keeps uploaded files in, which alone it may read.

    Raises:
        MissingExtraError: Gradio is not installed.
    """
    with needs_extra("browse", "pml-ext browse"):
        import gradio as gr
        from fastapi import FastAPI, Response
        from fastapi.middleware.trustedhost import TrustedHostMiddleware

    from .page import CSS, THEME, build

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    def picture(which: int, number: int, size: int) -> Response:
        if not 0 <= which < len(collections) or size not in _SIZES:
            return Response("no such picture", 404)
        try:
            content = collections[which].jpeg(number, size)
        except DataError:
            return Response("no such picture", 404)
        return Response(content, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=600"})

    app.add_api_route("/thumbnail/{which}/{number}/{size}", picture, response_class=Response)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Gradio says of libraries of its own
        blocks = build(collections)
        blocks.has_launched = True  # without it Gradio takes any path of this machine for an upload
        gr.mount_gradio_app(
            app,
            blocks,
            "/",
            server_name=HOST,
            footer_links=[],
            run_history=False,
            allowed_paths=[],
            blocked_paths=[str(collections[0].folder.resolve())],
            show_error=True,
            max_file_size=_UPLOAD,
            ssr_mode=False,
            enable_monitoring=False,
            mcp_server=False,
            pwa=False,
            theme=THEME,
            css=CSS,
        )
    app.add_middleware(_Closed, uploads=uploads)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])  # a name that is made to lead here
    return app


class _Closed:
    """Refuses what names a file that was not uploaded, or would fetch from elsewhere; the browser is to fetch nothing.

    Gradio looks after this too, in its own way; here it does not depend on what is mounted how.
    """

    def __init__(self, app: Any, uploads: Path) -> None:
        self.app, self.uploads = app, os.path.realpath(uploads)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = self._of_address(scope["path"])
        kind = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
        if refusal is None and scope["method"] == "POST" and not kind.startswith(b"multipart/"):
            body = await _body(receive)
            refusal = self._of_body(body)
            receive = _again(body, receive)
        if refusal is not None:
            from fastapi import Response

            await Response(refusal, 403)(scope, receive, send)
            return

        async def told(message: Any) -> None:
            if message["type"] == "http.response.start":
                more = {
                    "content-security-policy": _POLICY,
                    "x-content-type-options": "nosniff",
                    "referrer-policy": "no-referrer",
                }
                message["headers"] = [*message["headers"], *((k.encode(), v.encode()) for k, v in more.items())]
            await send(message)

        await self.app(scope, receive, told)

    def _of_address(self, path: str) -> str | None:
        path = path.lower()
        fetches = "proxy=" in path or "file=http" in path or "file/http" in path
        return "nothing is fetched from elsewhere" if fetches else None

    def _of_body(self, body: bytes) -> str | None:
        if len(body) > _BODY:
            return "too much"
        try:
            value = json.loads(body) if body.strip() else None
        except (ValueError, RecursionError):
            return "no JSON"
        return None if all(self._was_uploaded(path) for path in _paths(value)) else "only what was uploaded is read"

    def _was_uploaded(self, path: Any) -> bool:
        if not isinstance(path, str) or "\0" in path:
            return False
        return os.path.realpath(path).startswith(self.uploads + os.sep)


def _paths(value: Any) -> Iterator[Any]:
    """What stands under ``path`` anywhere in a JSON value; Gradio takes it for a file."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if value.get("path") is not None:
                yield value["path"]
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)


async def _body(receive: Any) -> bytes:
    body, more = b"", True
    while more and len(body) <= _BODY:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


def _again(body: bytes, receive: Any) -> Any:
    """What gives a body that was read once more, then whatever comes."""
    read = False

    async def again() -> Any:
        nonlocal read
        if read:
            return await receive()
        read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def serve(
    collections: Sequence[Collection], there: socket.socket, open_browser: bool, ready: Callable[[str], None]
) -> None:
    """Serves the page until Ctrl-C.

    Args:
        collections: of one folder, one per run.
        there: of :func:`listening`.
        open_browser: whether the page is opened.
        ready: called with its address, once it answers.

    Raises:
        MissingExtraError: Gradio is not installed.
    """
    address = f"http://{HOST}:{there.getsockname()[1]}"
    with _private() as uploads:
        app = application(collections, uploads)
        with needs_extra("browse", "pml-ext browse"):
            import uvicorn

        class Server(uvicorn.Server):  # type: ignore[misc]
            async def startup(self, sockets: Any = None) -> None:
                await super().startup(sockets)
                ready(address)
                if open_browser:
                    webbrowser.open(address)

        # The page keeps a connection open, which would wait for ever.
        settings = uvicorn.Config(app, log_level="critical", access_log=False, timeout_graceful_shutdown=1)
        with contextlib.suppress(KeyboardInterrupt):  # uvicorn has ended by then
            Server(settings).run(sockets=[there])
