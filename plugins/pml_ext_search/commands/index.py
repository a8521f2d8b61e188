"""``pml-ext index``."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Exit, Option

from pml_ext.errors import ConfigError, first_of, printable
from pml_ext_train.cli import AsJson, ComparedBy, Exclude, OnDevice, StoreFolder, Workers, print_result, say

from .loading import STORES, IndexedFolder, RunOrImages, embedding_run, load_for_command, run_for_command, say_doubts

if TYPE_CHECKING:
    from pml_ext_train.data import Pages

    from ..query.gallery import Gallery
    from ..trained import TrainedRun

_LISTED = 10  # maximum missing or changed images listed by name


def index(
    run: RunOrImages,
    folder: IndexedFolder = None,
    factory: Annotated[
        str,
        Option("--index", metavar="exact|FACTORY", help="A faiss factory, as IVF64,Flat (default: exact to 200,000)."),
    ] = "",
    parts: Annotated[
        Path | None, Option("--from", metavar="PARTS", help="Use the embeddings of embed --part; embed nothing.")
    ] = None,
    to: Annotated[str | None, Option(metavar="STORE", help=f"Also write changes to a database: {STORES}.")] = None,
    size: Annotated[
        int | None,
        Option(
            metavar="N",
            help="Keep the first N dimensions of each embedding, for a run trained with [loss] nested, or for a head "
            "in closed form, whose dimensions are ordered by variance (default: as the index, else all).",
        ),
    ] = None,
    check: Annotated[bool, Option("--check", help="Only verify the index and its image files.")] = False,
    exclude: Exclude = None,
    pages: Annotated[
        bool | None,
        Option(
            "--pages/--no-pages",
            help="Index each page of a TIFF and each frame of an animation, named FILE#N (default: as in the index, "
            "or the first).",
        ),
    ] = None,
    by: ComparedBy = None,
    workers: Workers = None,
    store: StoreFolder = None,
    device: OnDevice = "auto",
    as_json: AsJson = False,
) -> None:
    """Index the images of a folder, or the vectors of a file, or update the index.

    Examples:
        pml-ext index photographs
        pml-ext index runs/birds photographs --size 128
        pml-ext index runs/birds photographs --exclude thumbs/ --exclude "*.gif"
    """
    if workers is not None and (check or parts is not None):
        raise ConfigError("--workers is for reading images to embed; leave it out with --check or --from")
    if (check or parts is not None) and (exclude or pages is not None):
        raise ConfigError("--exclude and --pages are for reading a folder; leave them out with --check or --from")
    if check:
        if folder is not None or factory or parts is not None or to is not None or size is not None:
            raise ConfigError("--check changes nothing; leave out FOLDER, --index, --from, --size and --to")
        run, _ = run_for_command(run, device)
        _check_index(load_for_command(run, device, store=store, by=by).gallery(), as_json)
        return
    if size is not None and parts is not None:
        raise ConfigError("--size shortens embeddings while they are computed, and --from has them; leave out --size")
    run, images = run_for_command(run, device, exclude)
    opened: AbstractContextManager[TrainedRun]
    if parts is None:
        folder = folder or images
        read_pages: Pages | None = None if pages is None else ("all" if pages else "first")
        opened = embedding_run(run, folder, device, workers, store, by, size, exclude, read_pages)
    else:
        opened = nullcontext(load_for_command(run, device, store=store, by=by))
    with opened as trained:
        store_to_fill = None if to is None else trained.open_store(to)  # raises an error before anything is embedded
        if parts is None:
            gallery = trained.index(folder, factory)
        else:
            gallery = trained.write_index(parts, folder, factory)
        say_doubts(trained)
    about = _about_index(gallery)
    what = f"{gallery.noun} indexed"
    if gallery.by == "features":
        what += " by the features before the head"
    if gallery.cut is not None:
        what += f" by the first {gallery.cut} dimensions"
        _say_unordered(trained)
    lines = [f"{len(gallery)} {what}: {gallery.place}"]
    if gallery.changes is not None:
        lines.append(str(gallery.changes))
    faiss = gallery.faiss
    if faiss is not None and faiss.recall is not None:
        name = gallery.factory
        if faiss.setting:
            name += f" with {faiss.setting} {faiss.effort}"
        lines.append(_recall_text(name, faiss.recall))
    if store_to_fill is not None:
        stored = store_to_fill.update(gallery.embedded)
        recall = store_to_fill.recall_at_10(gallery.embedded)
        about["store"] = {"to": store_to_fill.shown, **stored._asdict(), "recall_at_10": recall}
        kind = store_to_fill.shown.partition(":")[0]
        lines.append(f"{kind}: {stored}")
        if recall is not None:
            lines.append(_recall_text(kind, recall))
    print_result(as_json, about, *lines)


def _say_unordered(trained: TrainedRun) -> None:
    """Note that the dimensions of the embeddings were neither trained in nested sizes nor ordered by variance."""
    model = trained.recipe.model
    is_closed_form = model.embedder in ("pca", "within-class") or "within-class" in (model.start, model.refit)
    if not (is_closed_form or trained.recipe.loss.nested):
        say(
            "the first dimensions are no better than others, and short embeddings may find less; train with "
            "[loss] nested, or fit a head in closed form"
        )


def _about_index(gallery: Gallery) -> dict[str, Any]:
    new, changed, gone, as_before = gallery.changes or (len(gallery), 0, 0, 0)
    faiss = gallery.faiss
    return {
        "index": str(gallery.place),
        "folder": str(gallery.folder),
        "by": gallery.by,
        "size": gallery.size,
        "images": len(gallery),
        "new": new,
        "changed": changed,
        "gone": gone,
        "as_before": as_before,
        "search": gallery.factory or "exact",
        "effort": None if faiss is None else faiss.effort,
        "recall_at_10": None if faiss is None else faiss.recall,
    }


def _recall_text(name: str, recall: float) -> str:
    return f"{name}: recall@10 {recall:.3f} of exact search, on a sample of the images"


def _check_index(gallery: Gallery, as_json: bool) -> None:
    """Print missing, changed and damaged images; exit code 1 for missing or changed ones."""
    gone, changed = gallery.check()
    how = " by the size and time of their files" if gallery.noun == "images" else ""
    lines = [f"{len(gallery)} {gallery.noun} checked{how}: {gallery.place}"]
    damaged = gallery.damaged()
    for what, paths in (("gone", gone), ("changed", changed), ("damaged and not indexed", damaged)):
        if paths:
            lines.append(f"{len(paths)} {what}: {printable(first_of(paths, _LISTED))}")
    about = {"index": str(gallery.place), "images": len(gallery), "gone": gone, "changed": changed, "damaged": damaged}
    print_result(as_json, about, *lines)
    if gone or changed:
        say(
            f"{len(gone)} {gallery.noun} gone and {len(changed)} changed since they were indexed; type: {gallery.again}"
        )
        raise Exit(1)
