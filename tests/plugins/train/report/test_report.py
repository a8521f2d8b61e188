"""Reports: pages, figures, contact sheets, projections and fonts."""

import base64
import io
import re
import warnings
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from markupsafe import Markup
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont
from matplotlib.image import imread
from PIL import Image
from pytorch_metric_learning.distances import LpDistance

from pml_ext_train.report import (
    ReportTable,
    contact_sheets,
    draw,
    figures,
    flattened,
    fonts,
    percent,
    projection,
    render,
)
from pml_ext_train.report.contact_sheets import CELL, contact_sheet, font_file


def pixels(figure):
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    buffer.seek(0)
    return imread(buffer)


def clusters(classes=3, count=60):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % classes
    return torch.eye(8)[labels] + 0.1 * torch.randn(count, 8, generator=generator), labels


def test_curves_hold_the_numbers_they_are_given():
    figure = figures.loss_curves({"loss": ([1, 2, 3], [3.0, 2.0, 1.0]), "variance": (range(100), [2.0] * 100)})
    assert [axes.get_title() for axes in figure.axes] == ["loss", "variance"]
    assert list(figure.axes[0].lines[0].get_ydata()) == [3.0, 2.0, 1.0]
    assert list(figure.axes[1].lines[1].get_ydata()) == pytest.approx([2.0] * 100)
    series = {"test images": ([0, 5], [0.5, 0.75])} | {f"recipe {number}": ([5], [0.25]) for number in range(5)}
    figure = figures.epoch_curves({"recall_at_1": series})
    (axes,) = figure.axes
    assert (axes.get_title(), len({(o.get_color(), o.get_linestyle()) for o in axes.lines})) == ("recall_at_1, %", 6)
    assert [list(line.get_ydata()) for line in axes.lines] == [[50.0, 75.0], *[[25.0]] * 5]
    assert axes.get_legend() is None
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [*series]
    figure = figures.recall_curve({"raw": {1: 0.5, 8: 0.75}} | {f"baseline {number}": {1: 0.25} for number in range(7)})
    (axes,) = figure.axes
    assert axes.get_legend() is None  # it stands beside the curves
    assert len(figure.legends[0].get_texts()) == len({line.get_color() for line in axes.lines}) == 8
    assert (axes.get_xscale(), list(axes.lines[0].get_ydata())) == ("log", [50.0, 75.0])
    assert figures.recall_curve({"raw": {1: 0.5}}).axes[0].get_xscale() == "linear"


def test_similarity_distributions_tell_positive_from_negative():
    embeddings, labels = clusters()
    figure = figures.similarity_distributions(
        {"training": (embeddings, labels), "test": (embeddings[:10], labels[:10])}
    )
    assert [axes.get_title() for axes in figure.axes] == ["training", "test"]
    positive, negative = (text.get_text() for text in figure.axes[0].get_legend().get_texts())
    points = torch.nn.functional.normalize(embeddings)
    same = (labels[:, None] == labels) & ~torch.eye(60, dtype=torch.bool)
    assert positive.startswith(f"positive: {(points @ points.T)[same].mean():.2f}")
    assert negative.startswith(f"negative: {(points @ points.T)[labels[:, None] != labels].mean():.2f}")


@pytest.mark.parametrize("method", ["pca", "tsne"])
def test_projection_separates_clusters_and_is_seeded(method):
    embeddings, labels = clusters()
    parts = {"before": (torch.randn(60, 8), labels), "after": (embeddings, labels)}
    drawn = [figures.projections(parts, ["a", "b", "c"], method).axes[1] for _ in range(2)]
    flat = [np.asarray(axes.collections[0].get_offsets()) for axes in drawn]
    assert np.array_equal(*flat)
    centers = np.stack([flat[0][labels.numpy() == c].mean(0) for c in range(3)])
    assert (np.linalg.norm(flat[0][:, None] - centers, axis=2).argmin(1) == labels.numpy()).all()
    assert [text.get_text() for text in drawn[0].get_legend().get_texts()] == ["a", "b", "c"]


def test_a_gallery_frames_right_and_wrong_images():
    photograph = torch.zeros(3, 400, 200, dtype=torch.uint8)
    drawing = torch.full((1, 4, 4), 50, dtype=torch.uint8)
    row = [figures.answer(drawing, f"{right}", right) for right in (True, False, None)]
    figure = figures.gallery([[(photograph, "query", figures.BLUE), *row], [None, row[1]]])
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.texts] == ["query", "✓ True", "✗ False", "None", "✗ False"]
    assert [patch.get_edgecolor() for patch in axes.patches] == [
        to_rgba(getattr(figures, name)) for name in ("BLUE", "RIGHT", "WRONG", "GRAY", "WRONG")
    ]
    left, right, bottom, top = axes.images[0].get_extent()  # a large photograph is drawn small, in its own shape
    assert (right - left, bottom - top) == pytest.approx((0.5, 1.0))
    assert axes.images[0].get_array().shape == (220, 110, 3)
    close = np.abs(pixels(figure)[..., :3] - np.array(to_rgba(figures.RIGHT))[:3]).max(axis=2) < 0.02
    assert close.sum() > 50


@pytest.mark.parametrize("method", ["pca", "tsne"])
@pytest.mark.parametrize(("noise", "size"), [(0, 1), (1e-7, 1), (0, 1e30)])
def test_collapsed_embeddings_are_one_point_with_a_note(method, noise, size):
    generator = torch.Generator().manual_seed(0)
    point = torch.randn(1, 16, generator=generator)
    collapsed = size * (point + noise * torch.randn(30, 16, generator=generator))
    embeddings, labels = clusters()
    before, after = figures.projections(
        {"before": (embeddings, labels), "after": (collapsed, labels[:30])}, method=method
    ).axes
    assert np.ptp(before.collections[0].get_offsets(), axis=0).min() > 0.1
    assert not np.ptp(after.collections[0].get_offsets(), axis=0).any()
    assert [text.get_text() for text in after.texts] == ["all images lie on one point"]
    assert not before.texts
    assert after.get_title() == "after\n30 images of 3 classes, collapsed"


def test_similarities_that_are_all_alike_have_a_note():
    embeddings, labels = clusters()
    point = embeddings[:1].expand(60, -1)
    figure = figures.similarity_distributions(
        {"training": (embeddings, labels), "test": (1e25 * point, labels), "score": (point, labels)},
        learned={"score": LpDistance(normalize_embeddings=False)},
    )
    assert [[text.get_text() for text in axes.texts] for axes in figure.axes] == [
        [],
        ["all pairs have the value 1"],
        ["all pairs have the value 0"],
    ]
    assert figure.axes[1].get_legend().get_texts()[0].get_text() == "positive: 1.00 ± 0.00"
    assert pixels(figure).size > 0


NAMES = ["price $5_$6", "$x^$", "a_b^{", "two\x00\x07", "\udcff.png", "中文", "שלום"]


def test_names_from_data_are_shown_as_they_are():
    image = torch.zeros(1, 4, 4, dtype=torch.uint8)
    drawn = [
        figures.projections({"all": (torch.randn(14, 4), torch.arange(14) % 7)}, NAMES, "pca"),
        figures.gallery([[figures.answer(image, name, None)] for name in NAMES]),
    ]
    with warnings.catch_warnings(action="error"):
        for figure in drawn:
            assert pixels(figure).size > 0
    legend = [text.get_text() for text in drawn[0].axes[0].get_legend().get_texts()]
    assert legend == [*NAMES[:3], "two��", "�.png", *NAMES[5:]]


# Fonts


def test_letters_are_drawn_by_a_fitting_font(monkeypatch):
    """STIX comes with matplotlib and has the letter; DejaVu Sans lacks it."""
    monkeypatch.setattr(figures, "font_families", lambda: ["DejaVu Sans", "STIXGeneral"])
    drawn = []
    for figure, font in ((Figure(), {"fontfamily": "STIXGeneral"}), (figures.PlainFigure(), {})):
        canvas = FigureCanvasAgg(figure)
        figure.text(0.2, 0.2, "\u1d84", fontsize=60, **font)
        canvas.draw()
        drawn.append(np.asarray(canvas.buffer_rgba()))
    assert np.array_equal(*drawn)


def test_names_are_shortened_to_their_width():
    assert fonts.short_name("a" * 30, 10) == "…" + "a" * 9
    assert fonts.short_name("\u4e2d" * 9, 10) == "…" + "\u4e2d" * 4  # wide letters take two columns
    assert fonts.drawable("a\x07\u202eb\n") == "a\ufffd\ufffdb\n"


# Contact sheets


def test_sheets_draw_letters_by_a_fitting_font(monkeypatch):
    """STIX comes with matplotlib and has the first letter; DejaVu Sans lacks both, and no font has the second."""
    monkeypatch.setattr(contact_sheets, "font_families", lambda: ["DejaVu Sans", "STIXGeneral"])
    letter = "\u1d84"
    unknown = "\U00020001"
    assert [font_file(text) for text in (letter, unknown)] == [*map(findfont, ("STIXGeneral", "DejaVu Sans"))]
    sheets = [contact_sheet(text, [Image.new("L", (9, 9), 255)]) for text in (letter, unknown)]
    assert sheets[0] != sheets[1]  # a box, in a font without the letter


def test_a_sheet_has_every_image_in_its_place():
    colors = [(10 * number, 40, 200) for number in range(23)]
    sheet = contact_sheet("23 of them", [Image.new("RGB", (5, 5), color) for color in colors])
    assert sheet.size == (10 * CELL + 6, 30 + 3 * CELL + 6)
    for number, color in enumerate(colors):
        row, column = divmod(number, 10)
        assert sheet.getpixel((6 + column * CELL + 50, 30 + row * CELL + 50)) == color


def test_only_framed_images_have_a_frame():
    sheet = np.asarray(contact_sheet("", [Image.new("L", (400, 200), 255)] * 3, ["a", "b", "c"], [False, True, False]))
    red = (sheet == (224, 49, 49)).all(axis=2)
    assert red[:, 6 + CELL : 6 + 2 * CELL].sum() == red.sum() > 600


@pytest.mark.parametrize("name", ["price $5_$6", "two\x00\x07\nlines", "\udcff.png", "中文", "שלום", "🙂", ""])
def test_any_name_of_a_file_is_drawn(name):
    plain, named = (np.asarray(contact_sheet(text, [Image.new("L", (1, 900))], [text])) for text in ("", name))
    assert (plain != named).any() == bool(name)


# Pages


ROWS = [["raw & <b>", "1.0"], ["after", Markup("<b>2.0</b>")]]


def line():
    figure = Figure()
    figure.subplots().plot([1, 2])
    return figure


def test_a_page_has_tables_and_figures_in_it():
    drawn = draw("A <line>", line, "Its caption")
    page = render(
        "report",
        title="A & B",
        tables=[ReportTable("Results", ["phase", "R@1 <%>"], ROWS, "A caption.")],
        figures=[drawn],
        phases={},
    )
    assert "<h1>A &amp; B</h1>" in page
    assert re.findall(r'<th scope="(?:col|row)">(.*?)</th>', page) == [
        "phase",
        "R@1 &lt;%&gt;",
        "raw &amp; &lt;b&gt;",
        "after",
    ]
    assert re.findall(r"<td>(.*?)</td>", page) == ["1.0", "<b>2.0</b>"]
    (picture,) = re.findall(r'alt="A &lt;line&gt;" src="data:image/png;base64,([^"]+)"', page)
    assert base64.b64decode(picture) == drawn.png
    assert drawn.png.startswith(b"\x89PNG")
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)  # nothing from elsewhere


@pytest.mark.parametrize("error", [ValueError("no\nbins"), SystemExit("enough")])
def test_a_figure_that_fails_leaves_the_others(error):
    failed = draw("broken", Mock(side_effect=error), owner="MyLoss: ")
    first = str(error).splitlines()[0]
    assert (failed.png, failed.problem) == (b"", f"MyLoss: {type(error).__name__}: {first}")
    page = render("report", title="a", figures=[failed, draw("whole", line)], phases={})
    assert f"This figure could not be drawn: MyLoss: {type(error).__name__}: {first}</div>" in page
    assert page.count("data:image/png;base64,") == 1
    with pytest.raises(KeyboardInterrupt):
        draw("stopped", Mock(side_effect=KeyboardInterrupt))


def test_shares_are_formatted_in_percent():
    assert [percent(value) for value in (0.714, 1, 0, None)] == ["71.4", "100.0", "0.0", ""]
    assert [percent(value, "+") for value in (0.0126, -0.5)] == ["+1.3", "-50.0"]
    bold = percent(0.5, bold=True)
    assert (bold, type(bold)) == ("<b>50.0</b>", Markup)


# Projections


def test_projections_are_seeded_and_few_points_use_pca():
    points = projection.unit_rows_on_cpu(torch.randn(40, 6, generator=torch.Generator().manual_seed(0))).numpy()
    assert np.array_equal(flattened(points, "tsne", 1), flattened(points, "tsne", 1))
    few = points[:10]
    assert np.array_equal(flattened(few, "tsne"), flattened(few, "pca"))
    assert not np.allclose(flattened(points[:11], "tsne"), flattened(points[:11], "pca"))


def test_huge_and_tiny_rows_become_unit_vectors():
    found = projection.unit_rows_on_cpu(torch.tensor([[3e38, 0, 3e38], [0, -1e-30, 0], [3, 4, 0]], requires_grad=True))
    assert not found.requires_grad
    root = 0.5**0.5
    torch.testing.assert_close(found, torch.tensor([[root, 0, root], [0, -1e-18, 0], [0.6, 0.8, 0]]))
