"""The store of embeddings: nothing is embedded twice, whatever was interrupted, damaged, added, deleted or replaced."""

import errno
import fcntl
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from pml_ext import load_run
from pml_ext.errors import ConfigError, DataError, UnwritableError
from pml_ext.retrieval import SkippedImage, StoreWarning, embedding, waiting
from pml_ext.retrieval import store as store_module
from pml_ext.retrieval.store import EmbeddingStore

from .conftest import write_digits


def write_some(place, numbers, brightness=255):
    """Drawings of 8 x 8, each another one."""
    generator = np.random.default_rng(0)
    drawings = generator.integers(256, size=(1000, 8, 8), dtype=np.uint8)
    for number in numbers:
        file = place / f"class {number % 7}" / f"{number:04d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(drawings[number] // 2 + brightness // 2).save(file, compress_level=0)


@pytest.fixture
def here(runs, tmp_path):
    """A run with a store of its own, and an empty folder."""
    (tmp_path / "images").mkdir()
    return lambda **settings: load_run(runs[0], "cpu", store=tmp_path / "store", **settings), tmp_path / "images"


def shards(place):
    return sorted((place.parent / "store").glob("*.parquet"))


def test_added_deleted_and_replaced_images_are_as_from_scratch(here, runs, tmp_path):
    make, images = here
    write_some(images, range(300))
    first = make().embed_folder(images)
    assert (first.new, len(first.paths)) == (300, 300)
    names = np.random.default_rng(1).permutation(300)
    for number in names[:100]:
        (images / f"class {number % 7}" / f"{number:04d}.png").unlink()
    write_some(images, names[100:150], brightness=100)
    write_some(images, range(300, 500))
    second = make().embed_folder(images)
    scratch = load_run(runs[0], "cpu", store=tmp_path / "other").embed_folder(images)
    assert (second.new, scratch.new, len(second.paths)) == (250, 400, 400)
    assert second.paths == scratch.paths
    torch.testing.assert_close(second.embeddings, scratch.embeddings, rtol=0, atol=1e-5)
    stats = [(images / path).stat() for path in second.paths]
    assert [about.st_size for about in stats] == second.sizes.tolist()
    assert [about.st_mtime_ns for about in stats] == second.times.tolist()
    third = make().embed_folder(images)
    assert third.new == 0
    assert torch.equal(third.embeddings, second.embeddings)
    rows = sum(pq.read_metadata(path).num_rows for path in shards(images))
    assert rows == 550  # 150 of no use are not a third yet
    shutil.rmtree(images / "class 3")
    make().embed_folder(images)
    assert sum(pq.read_metadata(path).num_rows for path in shards(images)) == len(make().embed_folder(images).paths)


def test_a_shard_is_as_its_page_says(here):
    make, images = here
    write_some(images, range(20))
    (images / "loose.png").write_bytes(next(images.glob("class 1/*")).read_bytes())
    run = make()
    embedded = run.embed_folder(images)
    (shard,) = shards(images)
    table = pq.read_table(shard)
    assert [(field.name, str(field.type)) for field in table.schema] == [
        ("folder", "binary"),
        ("path", "binary"),
        ("size", "int64"),
        ("modified_ns", "int64"),
        ("class", "binary"),
        ("embedding", "fixed_size_list<element: float>[64]"),
    ]
    assert [path.decode() for path in table["path"].to_pylist()] == embedded.paths
    assert set(table["folder"].to_pylist()) == {os.fsencode(images.resolve())}
    assert [name.decode() for name in table["class"].to_pylist()] == embedded.classes
    raw = torch.tensor(table["embedding"].to_pylist())
    assert not torch.allclose(raw.norm(dim=1), torch.ones(21))
    assert torch.equal(torch.nn.functional.normalize(raw), embedded.embeddings)
    assert torch.equal(run.embed_folder(images, normalize=False).embeddings, raw)


def test_an_image_is_known_whichever_folder_was_embedded(here):
    make, images = here
    write_some(images, range(60))
    make().embed_folder(images / "class 2")
    whole = make().embed_folder(images)
    assert whole.new == 60 - len(list((images / "class 2").iterdir()))
    (images.parent / "linked").symlink_to(images)
    inside = make().embed_folder(images.parent / "linked" / "class 4")
    assert (inside.new, inside.classes[0]) == (0, "")
    assert inside.paths == sorted(path.name for path in (images / "class 4").iterdir())


def test_index_and_cluster_share_what_is_embedded(here, tmp_path, monkeypatch):
    make, images = here
    write_digits(images, range(30))
    run = make()
    run.index(images, tmp_path / "index")
    monkeypatch.setattr(embedding, "read_batches", lambda paths, *_: iter(()) if not paths else pytest.fail("read"))
    assert len(run.cluster(images, 3, tmp_path / "clusters")) == 30
    assert run.embed(images).shape == (30, 64)
    assert len(run.query(images / "0" / "0000.png", 2, tmp_path / "index")[0].paths) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-100]),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes().replace(b"PAR1", b"PAR2")),
        lambda path: path.write_bytes(path.read_bytes()[:3000] + b"\0\1\2\3" + path.read_bytes()[3004:]),
    ],
)
def test_a_damaged_shard_is_named_and_its_images_embedded_again(here, monkeypatch, damage):
    monkeypatch.setattr(waiting, "SHARD", 64)
    make, images = here
    write_some(images, range(150))
    before = make().embed_folder(images)
    damaged = shards(images)[1]
    rows = pq.read_metadata(damaged).num_rows
    damage(damaged)
    with pytest.warns(StoreWarning) as heard:
        again = make().embed_folder(images)
    (text,) = [str(warning.message) for warning in heard]
    assert text.startswith(f"{damaged}: damaged (")
    assert "\n" not in text
    assert again.new == rows
    torch.testing.assert_close(again.embeddings, before.embeddings, rtol=0, atol=1e-5)


def test_shards_of_an_earlier_state_are_removed_with_a_word(runs, tmp_path):
    shutil.copytree(runs[0], tmp_path / "run", ignore=shutil.ignore_patterns("index", "records", "figures", "embeddi*"))
    write_some(tmp_path / "images", range(10))
    load_run(tmp_path / "run", "cpu").embed_folder(tmp_path / "images")
    recipe = tmp_path / "run" / "recipe.toml"
    text = recipe.read_text()
    shutil.copy(runs[1] / "checkpoints" / "model.pt", tmp_path / "run" / "checkpoints" / "model.pt")
    (tmp_path / "run" / "SHA256SUMS").unlink(missing_ok=True)
    other = load_run(tmp_path / "run", "cpu")
    with pytest.warns(StoreWarning, match=r"embeddings: 1 file of an earlier state of the run .* removed"):
        assert other.embed_folder(tmp_path / "images").new == 10
    assert text == recipe.read_text()
    assert len(list((tmp_path / "run" / "embeddings").iterdir())) == 1
    shared = tmp_path / "shared"  # by several runs: each leaves the others' alone
    for run, new in ((runs[0], 10), (runs[1], 10), (runs[0], 0)):
        assert load_run(run, "cpu", store=shared).embed_folder(tmp_path / "images").new == new


def test_precision_and_preprocessing_are_of_the_identity(runs):
    run = load_run(runs[0], "cpu")
    network = run.network

    def identity(weights="w", precision="float32"):
        how = embedding.HowToRead(Path("store"))
        return embedding.ImageEmbedder("run", network, torch.device("cpu"), weights, precision, how).identity

    first = identity()
    assert {identity("v"), identity(precision="bfloat16")}.isdisjoint({first})
    network.preprocessing = network.preprocessing.model_copy(update={"squash": True})
    assert identity() != first


def test_the_precision_of_the_run_is_embedded_in(here):
    make, images = here
    write_some(images, range(10))
    run = make()
    seen = []
    run.embed(torch.zeros(1, 8, 8, dtype=torch.uint8))
    run.embedder.register_forward_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
    run._images.precision = "bfloat16"
    half = run.embed_folder(images)
    assert half.embeddings.dtype == torch.float32
    run.embed(torch.zeros(1, 8, 8, dtype=torch.uint8))
    assert seen == [True, True]


def test_a_full_disk_is_one_line_and_what_was_written_stays(here, command, runs, monkeypatch):
    monkeypatch.setattr(waiting, "SHARD", 64)
    make, images = here
    write_some(images, range(300))
    real, written = Path.write_bytes, []

    def full(path, content):
        if path.name.endswith(".tmp") and len(written) == 2:
            raise OSError(28, "No space left on device", str(path))
        written.append(path)
        return real(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    done = command("index", runs[0], images, "--store", images.parent / "store", "-o", images.parent / "index")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "cannot be written (No space left on device); what was written before stays" in done.stderr
    monkeypatch.setattr(Path, "write_bytes", real)
    assert len(shards(images)) == 2
    assert {path.suffix for path in (images.parent / "store").iterdir()} == {".parquet"}
    assert not (images.parent / "index").exists()
    assert make().embed_folder(images).new == 300 - 128


def test_small_shards_are_joined_and_left_overs_removed(here, monkeypatch):
    monkeypatch.setattr(waiting, "SHARD", 8)
    make, images = here
    write_some(images, range(200))
    (images.parent / "store").mkdir()
    dead = images.parent / "store" / ".x.parquet.99999999.tmp"
    dead.write_text("half of a shard")
    before = make().embed_folder(images, batch_size=8)
    (joined,) = shards(images)
    assert not dead.exists()
    assert pq.read_metadata(joined).num_rows == 200
    again = make().embed_folder(images)
    assert (again.new, again.paths) == (0, before.paths)
    assert torch.equal(again.embeddings, before.embeddings)
    monkeypatch.setattr(EmbeddingStore, "_write", lambda *_: pytest.fail("joined what is joined"))
    make().embed_folder(images)


def test_a_disk_that_is_full_while_shards_are_joined_costs_nothing(here, monkeypatch):
    monkeypatch.setattr(waiting, "SHARD", 8)
    make, images = here
    write_some(images, range(200))

    def full(*_):
        raise UnwritableError("No space left")

    monkeypatch.setattr(EmbeddingStore, "_join", full)
    with pytest.warns(StoreWarning, match="shards could not be joined: No space left"):
        assert make().embed_folder(images, batch_size=8).new == 200
    assert len(shards(images)) == 25


def test_names_that_are_no_text_and_odd_ones_survive(here):
    make, images = here
    names = [b"caf\xe9.png", b"price $5_$6.png", b"a\nb.png", "雪 🙂.png".encode(), b"*[x]?.PNG"]
    write_some(images, range(1))
    pixels = next(images.glob("*/*.png")).read_bytes()
    try:
        for number, name in enumerate(names):
            with open(os.fsencode(images) + b"/" + name, "wb") as file:
                file.write(pixels + bytes(number))
    except OSError:
        pytest.skip("this file system wants names that are text")
    first = make().embed_folder(images)
    assert {os.fsencode(path) for path in first.paths} == {*names, b"class 0/0000.png"}
    again = make().embed_folder(images)
    assert (again.new, again.paths, again.skipped) == (0, first.paths, {})


def test_unreadable_files_are_named_each_time_and_mended_ones_embedded(here):
    make, images = here
    write_some(images, range(5))
    broken = images / "class 0" / "broken.jpg"
    broken.write_bytes(b"no image")
    for new in (5, 0):
        with pytest.warns(SkippedImage, match="broken.jpg: not a readable image"):
            embedded = make(workers=1).embed_folder(images)
        assert (embedded.new, list(embedded.skipped)) == (new, ["class 0/broken.jpg"])
    broken.write_bytes((images / "class 0" / "0000.png").read_bytes())
    assert make().embed_folder(images).new == 1


def test_a_second_writer_waits_with_a_word(here, monkeypatch):
    make, images = here
    write_some(images, range(5))
    (images.parent / "store").mkdir()
    handle = os.open(images.parent / "store", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    real = warnings.warn

    def told(text, *rest, **more):
        if "waiting" in str(text):
            os.close(handle)  # the first one is done
        real(text, *rest, **more)

    run = make()
    monkeypatch.setattr("warnings.warn", told)
    with pytest.warns(StoreWarning, match="another process embeds images into"):
        embedded = run.embed_folder(images)
    assert embedded.new == 5


def test_a_store_that_cannot_be_written_is_done_without(here, monkeypatch):
    make, images = here
    write_some(images, range(5))
    (images.parent / "store").write_text("a file")
    with pytest.warns(StoreWarning, match=r"store: cannot be written \(.*\), so embeddings are not kept; --store FOLD"):
        embedded = make().embed_folder(images)
    assert (embedded.new, embedded.embeddings.shape) == (5, (5, 64))
    assert (images.parent / "store").read_text() == "a file"


SCRIPT = """
import sys, time
from pml_ext.retrieval import embedding, waiting
waiting.SHARD = 20
real = embedding.ImageEmbedder._forward
def slow(self, images):
    time.sleep(0.02)
    return real(self, images)
embedding.ImageEmbedder._forward = slow
from pml_ext import load_run
load_run(sys.argv[1], "cpu", workers=2, store=sys.argv[3]).embed_folder(sys.argv[2], batch_size=10)
"""


def test_a_killed_process_goes_on_from_its_last_shard(here, runs):
    """tests/retrieval/kills.py kills the command three times."""
    make, images = here
    write_some(images, range(400))
    place = images.parent / "store"
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, *map(str, (runs[0], images, place))])
    while len(shards(images)) < 5 and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = sum(pq.read_metadata(path).num_rows for path in shards(images))
    assert kept % 20 == 0
    assert 100 <= kept < 400
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no damaged shard, and nobody holds the lock
        embedded = make().embed_folder(images)
    assert embedded.new == 400 - kept
    assert not list(place.glob(".*"))
    shutil.rmtree(place)
    torch.testing.assert_close(embedded.embeddings, make().embed_folder(images).embeddings, rtol=0, atol=1e-5)


def test_a_worker_that_dies_is_named_with_its_image(here, monkeypatch):
    """Torch looks for dead workers every five seconds; here more often."""
    reading = torch.utils.data.dataloader._MultiProcessingDataLoaderIter
    monkeypatch.setattr(reading._try_get_data, "__defaults__", (0.2,))
    make, images = here
    write_some(images, range(5))

    def deadly(path, *_, **__):
        if path.name == "0003.png":
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.zeros(1, 8, 8, dtype=torch.uint8)

    monkeypatch.setattr("pml_ext.retrieval.reading.read_image", deadly)
    with pytest.raises(DataError, match=r"a data-loader worker.* died.*0003.png"):
        make(workers=1).embed_folder(images, batch_size=2)
    assert not shards(images)


def test_processes_embed_a_part_each_and_have_all(here, monkeypatch):
    """Two ranks as threads; what they pass on goes as between processes."""
    make, images = here
    write_some(images, range(120))
    (images / "class 0" / "broken.png").write_bytes(b"no image")
    barrier, place, local = threading.Barrier(2), {}, threading.local()

    def everyone(value):
        place[local.rank] = pickle.dumps(value)
        barrier.wait(60)
        values = [pickle.loads(place[rank]) for rank in range(2)]
        barrier.wait(60)
        return values

    ranks = {
        "rank": lambda: local.rank,
        "num_processes": lambda: 2,
        "from_rank_0": lambda value: everyone(value)[0],
        "from_ranks": lambda value: [*everyone(value)] if local.rank == 0 else everyone(value) and [],
    }
    for name, function in ranks.items():
        monkeypatch.setattr(embedding, name, function)
    runs = [make(), make()]

    def work(rank):
        local.rank = rank
        return runs[rank].embed_folder(images)

    with pytest.warns(SkippedImage) as heard, ThreadPoolExecutor(2) as pool:
        both = [task.result() for task in [pool.submit(work, rank) for rank in range(2)]]
    assert len(heard) == 1
    assert sorted(pq.read_metadata(path).num_rows for path in shards(images)) == [59, 61]
    monkeypatch.undo()
    with pytest.warns(SkippedImage):
        alone = make().embed_folder(images)
    assert alone.new == 0
    assert both[0].new == 120
    for each in both:
        assert each.paths == alone.paths
        assert torch.equal(each.embeddings, alone.embeddings)
        assert list(each.skipped) == ["class 0/broken.png"]


def test_progress_is_told(here, command, runs, monkeypatch):
    make, images = here
    write_some(images, range(130))
    told = []
    make(listener=told.append).embed_folder(images)
    assert [(now.done, now.images) for now in told] == [(64, 130), (128, 130), (130, 130)]
    assert all(now.rate > 0 for now in told)
    assert told[-1].seconds_left == 0
    monkeypatch.setattr("pml_ext.cli.progress.SECONDS", 0.0)
    shutil.rmtree(images.parent / "store")
    done = command("embed", runs[0], images, "-o", images.parent / "all.npz", "--store", images.parent / "store")
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert len(lines) == 3
    assert re.fullmatch(r"embedded 128 of 130 images: \d+ images/s, \d:\d\d:\d\d left", lines[1])


def test_wrong_settings(here, runs):
    make, images = here
    write_some(images, range(1))
    with pytest.raises(ConfigError, match="--workers -1: wanted 0 or more"):
        make(workers=-1)
    with pytest.raises(ConfigError, match="--workers -2: wanted 0 or more"):
        make().embed_folder(images, workers=-2)
    with pytest.raises(ConfigError, match="batch_size 0: wanted 1 or more"):
        make().embed_folder(images, batch_size=0)
    assert not shards(images)


def test_a_shard_that_cannot_be_read_now_stays(here, monkeypatch):
    make, images = here
    write_some(images, range(20))
    whole = make().embed_folder(images)
    (shard,) = shards(images)
    read, refused = Path.read_bytes, []

    def busy(path):
        if path == shard and not refused:
            refused.append(path)
            raise OSError(errno.EMFILE, "Too many open files")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", busy)
    with pytest.warns(StoreWarning, match="cannot be read .Too many open files.; its images are embedded again"):
        again = make().embed_folder(images)
    assert again.new == 20
    monkeypatch.undo()
    assert shard.exists()
    assert make().embed_folder(images).new == 0
    torch.testing.assert_close(again.embeddings, whole.embeddings, rtol=0, atol=1e-5)


def test_links_that_are_not_followed_are_told(here):
    make, images = here
    write_some(images / "here", range(4))
    (images / "gone.png").symlink_to(images / "nowhere.png")
    (images / "elsewhere").symlink_to(images / "here")
    with pytest.warns(SkippedImage) as heard:
        embedded = make().embed_folder(images)
    assert len(embedded.paths) == 4
    assert [*embedded.skipped] == ["elsewhere", "gone.png"]
    assert sorted(str(one.message).partition(": ")[2] for one in heard) == [
        "a link to a folder, which is not followed",
        "a link to what is not there",
    ]


def test_a_shard_that_cannot_be_read_while_others_are_joined_stays(here, monkeypatch):
    make, images = here
    monkeypatch.setattr(waiting, "SHARD", 8)
    write_some(images, range(136))
    real = EmbeddingStore._join

    def refused_once(self, chosen, kept):
        read, busy = Path.read_bytes, self._path(chosen[3])
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_bytes", lambda path: read(path) if path != busy else refuse())
            real(self, chosen, kept)

    def refuse():
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(EmbeddingStore, "_join", refused_once)
    with pytest.warns(StoreWarning, match="Too many open files"):
        make().embed_folder(images, batch_size=8)
    assert len(shards(images)) == 2
    assert make().embed_folder(images).new == 0


def test_a_store_that_cannot_be_listed_is_told(here, monkeypatch):
    make, images = here
    write_some(images, range(8))
    run = make()
    run.embed_folder(images)
    real, place = os.listdir, images.parent / "store"

    def refuse(path="."):
        if path == place:
            raise OSError(errno.EIO, "Input/output error")
        return real(path)

    monkeypatch.setattr(store_module.os, "listdir", refuse)
    with pytest.warns(StoreWarning, match="store: cannot be read .Input/output error.; what it has is embedded again"):
        run.embed(sorted(images.glob("*/*.png"))[:2])
