"""The page, drawn with Gradio: what it shows comes from :mod:`pml_ext.browse.views`."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..errors import PmlExtError, needs_extra
from . import views
from .collection import Collection

with needs_extra("browse", "pml-ext browse"):
    import gradio as gr

_HERE = Path(__file__).parent
CSS = (_HERE / "page.css").read_text("utf-8")
_SHOWN = 48  # photographs to click on
_FONTS = [
    "system-ui",
    "Segoe UI",
    "Roboto",
    "Noto Sans",
    "DejaVu Sans",
    "sans-serif",
]  # of the machine: none is fetched
_METHODS = {"t-SNE": "tsne", "principal components": "pca"}

THEME = gr.themes.Default(primary_hue="blue", font=_FONTS, font_mono=["monospace"])
_PRIVATE: dict[str, Any] = {"api_visibility": "private", "show_progress": "minimal"}


def _uploaded(payload: Any) -> Any:
    """The path of what was uploaded: the run opens it, and says why it cannot, where Gradio shows a bare "Error"."""
    return None if payload is None else payload.path


def _grid() -> gr.HTML:
    return gr.HTML(
        [],
        html_template="<div class='pml-grid'></div>",
        js_on_load=(_HERE / "grid.js").read_text("utf-8"),
        apply_default_css=False,
    )


def _map() -> gr.HTML:
    return gr.HTML(
        {},
        html_template="<div class='pml-map'><canvas></canvas><div class='hover'></div><div class='legend'></div></div>",
        js_on_load=(_HERE / "map.js").read_text("utf-8"),
        apply_default_css=False,
        min_height=660,
    )


def build(collections: Sequence[Collection]) -> gr.Blocks:
    """The page.

    Args:
        collections: of one folder, one per run.
    """
    page = _Page(collections)
    with gr.Blocks(title=f"{collections[0].name}: browse", analytics_enabled=False, fill_width=True) as blocks:
        head = gr.Markdown(views.heading(collections, None))
        with gr.Tabs() as tabs:
            ask = page.query(tabs)
            page.clusters(tabs, ask)
            page.map(tabs, ask)
            page.judged(tabs, ask)
        blocks.load(page.heading, outputs=head, **_PRIVATE)
    return blocks


class _Page:
    """The tabs; each makes its components and says what they do."""

    def __init__(self, collections: Sequence[Collection]) -> None:
        self.collections = collections
        self.names = [collection.name for collection in collections]
        self._missing: int | None = None
        self._counted = threading.Event()
        threading.Thread(target=self._count, daemon=True).start()

    def _count(self) -> None:
        self._missing = len(self.collections[0].missing())
        self._counted.set()

    def heading(self) -> str:
        self._counted.wait(30)
        return views.heading(self.collections, self._missing)

    def which(self) -> gr.Radio:
        """Which run is shown; hidden where there is one."""
        return gr.Radio(self.names, value=self.names[0], label="Run", type="index", visible=len(self.names) > 1)

    # Query

    def query(self, tabs: gr.Tabs) -> Callable[..., None]:
        first = self.collections[0]
        with gr.Tab("Query", id="query"), gr.Row(equal_height=False):
            with gr.Column(scale=1, min_width=260):
                asked = gr.State(None)
                photo = gr.Image(
                    label="A photograph of yours",
                    type="filepath",
                    image_mode=None,
                    height=260,
                    sources=["upload", "clipboard"],
                    elem_id="photo",
                )
                photo.preprocess = _uploaded  # a class of our own has Gradio write a file beside this one
                k = gr.Slider(1, 50, value=12, step=1, label="How many nearest")
                others = gr.Button("Other photographs", elem_id="others")
            with gr.Column(scale=4):
                result = _grid()
                chosen = _grid()

        def show(asked: Any, k: int) -> list[views.Part]:
            if asked is None:
                return []
            with _told():
                if isinstance(asked, str):
                    return views.answers_to_file(self.collections, Path(asked), k)
                which, number = asked
                return views.answers(self.collections, which, number, k)

        def click(k: int, event: gr.EventData) -> Any:
            asked = (int(event.which), int(event.number))
            return asked, show(asked, k), gr.Tabs(selected="query")

        def bring(file: str | None, k: int) -> Any:
            return file, show(file, k)

        def some() -> list[views.Part]:
            numbers = sorted(random.sample(range(len(first)), min(_SHOWN, len(first))))
            return views.sample(first, numbers)

        def ask(grid: gr.HTML) -> None:
            grid.click(click, k, [asked, result, tabs], **_PRIVATE)

        chosen.value = some()
        ask(result)
        ask(chosen)
        photo.upload(bring, [photo, k], [asked, result], **_PRIVATE)
        photo.clear(lambda: (None, []), None, [asked, result], **_PRIVATE)
        k.release(show, [asked, k], result, **_PRIVATE)
        others.click(some, None, chosen, **_PRIVATE)
        return ask

    # Clusters

    def clusters(self, tabs: gr.Tabs, ask: Callable[[gr.HTML], None]) -> None:
        default = self._default_clusters()
        with gr.Tab("Clusters", id="clusters"):
            with gr.Row():
                which = self.which()
                number = gr.Textbox(default, label="How many clusters (or auto)", elem_id="clusters-number", scale=1)
                find = gr.Button("Find clusters", variant="primary", elem_id="find", scale=1)
            images = _grid()
            cards = _grid()

        def show(which: int, number: str) -> Any:
            with _told():
                collection = self.collections[which]
                return views.cluster_cards(which, collection, collection.clusters(_number(number))), []

        def open_(which: int, number: str, event: gr.EventData) -> list[views.Part]:
            with _told():
                collection = self.collections[int(event.which)]
                grouping = collection.clusters(_number(number))
                return views.sheet(int(event.which), collection, grouping, int(event.cluster))

        for event in (find.click, number.submit):
            event(show, [which, number], [cards, images], **_PRIVATE)
        cards.click(open_, [which, number], images, **_PRIVATE)
        ask(images)

    def _default_clusters(self) -> str:
        first = self.collections[0]
        classes = len(set(first.classes) - {""})
        return str(max(1, min(classes or 20, 100, len(first))))

    # Map

    def map(self, tabs: gr.Tabs, ask: Callable[[gr.HTML], None]) -> None:
        colors = ["class", "cluster"] if self.collections[0].has_classes else ["cluster"]
        with gr.Tab("Map", id="map") as tab:
            with gr.Row():
                which = self.which()
                method = gr.Radio(list(_METHODS), value="t-SNE", label="Projection")
                color = gr.Radio(colors, value=colors[0], label="Color by")
                number = gr.Textbox(self._default_clusters(), label="How many clusters (or auto)")
            note = gr.Markdown("")
            drawn = _map()

        def show(which: int, method: str, color: str, number: str) -> Any:
            with _told():
                collection = self.collections[which]
                grouping = collection.clusters(_number(number)) if color == "cluster" else None
                points = views.map_points(which, collection, _METHODS[method], grouping)
            about = points["note"][0].upper() + points["note"][1:]
            return points, f"{about}. Point at one to see it, click for its nearest; wheel: zoom, drag: move."

        inputs = [which, method, color, number]
        for event in (tab.select, which.change, method.change, color.change, number.submit):
            event(show, inputs, [drawn, note], **_PRIVATE)
        ask(drawn)

    # Right and wrong

    def judged(self, tabs: gr.Tabs, ask: Callable[[gr.HTML], None]) -> None:
        with gr.Tab("Right and wrong", id="judged") as tab:
            if not self.collections[0].has_classes:
                gr.Markdown("Right and wrong need classes: a sub-folder of images for each.")
                return
            about = gr.Markdown("")
            kinds = ["wrong", "right"] + ["wrong, and right by the other run"] * (len(self.collections) == 2)
            with gr.Row():
                which = self.which()
                kind = gr.Radio(kinds, value="wrong", label="Nearest other image")
                start = gr.Number(1, label="From", precision=0, minimum=1, step=views.PAGE)
            shown = _grid()

        def show(which: int, kind: str, start: float) -> Any:
            with _told():
                other = 1 - which if kind == kinds[-1] and len(kinds) == 3 else None
                first = max(0, int(start or 1) - 1)
                parts, _ = views.pairs(self.collections, which, kind == "right", first, other)
                return parts, views.summary(self.collections)

        for event in (tab.select, which.change, kind.change, start.change):
            event(show, [which, kind, start], [shown, about], **_PRIVATE)
        ask(shown)


def _number(text: str) -> int | str:
    text = text.strip()
    return int(text) if text.removeprefix("-").isdecimal() else text


class _told:
    """What goes wrong inside is said on the page, in one line."""

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, PmlExtError):
            raise gr.Error(str(error).replace("--clusters ", ""), print_exception=False) from None
