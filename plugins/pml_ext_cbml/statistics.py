"""Statistics of the similarities of pairs, and CBML settings computed from them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from pml_ext.plugin import (
    RunView,
    check_number,
    gram,
    masked_sum,
    normalize,
    pair_masks,
    rows_per_tile,
    tiles_of_rows,
    widest_dtype,
)

from .functional import log_ratio

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN = 1000  # largest number of images per panel
_BINS = 60  # per histogram


@dataclasses.dataclass(frozen=True)
class PairStatistics:
    """Similarities of pairs: two normal distributions, and mean numbers of pairs per anchor.

    A number outside its range raises ValueError.
    """

    mean_pos: float  # mu_P, of positive pairs
    std_pos: float  # sigma_P, above 0
    mean_neg: float  # mu_N, of negative pairs, below mean_pos
    std_neg: float  # sigma_N, above 0
    num_pos: float = 1.0  # |P_i|, mean number of positives per anchor
    num_neg: float = 1.0  # |N_i|, mean number of negatives per anchor

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            check_number(self, name, value, above=-math.inf if name.startswith("mean") else 0)
        if self.mean_pos <= self.mean_neg:
            raise ValueError(
                f"mean_pos of PairStatistics must be above mean_neg; got {self.mean_pos} and "
                f"{self.mean_neg}: positive pairs are no more similar than negative ones"
            )

    @classmethod
    def of(cls, embeddings: Tensor, labels: Tensor) -> PairStatistics:
        """Statistics of the cosine similarities of all pairs of a batch, ``[B, D]``, labels ``[B]``.

        ValueError without pairs of both kinds, or if all similarities of one kind are equal.
        """
        x = normalize(embeddings.detach().to(widest_dtype(embeddings.device)))
        labels = labels.to(x.device)
        counts = x.new_zeros(2)  # of positive and of negative pairs
        sums = x.new_zeros(2)
        for similarity, masks in _tiles_of_pairs(x, labels):
            counts += torch.stack([mask.sum() for mask in masks])
            sums += torch.stack([masked_sum(similarity, mask).sum() for mask in masks])
        if not counts.all():
            raise ValueError("PairStatistics.of needs at least one positive and one negative pair")

        means = sums / counts
        squares = x.new_zeros(2)  # of the differences from the mean
        for similarity, masks in _tiles_of_pairs(x, labels):
            for kind, mask in enumerate(masks):
                squares[kind] += masked_sum((similarity - means[kind]).square(), mask).sum()

        mean_pos, mean_neg = means.tolist()
        deviations = (squares / counts).sqrt()
        rounding = 8 * torch.finfo(x.dtype).eps  # equal similarities may differ from their mean by it
        std_pos, std_neg = torch.where(deviations > rounding, deviations, 0).tolist()
        num_pos, num_neg = (counts / len(x)).tolist()
        return cls(mean_pos, std_pos, mean_neg, std_neg, num_pos, num_neg)

    def exponents(self) -> dict[str, float]:
        r"""Centers and widths of both exponentials, Sec. 4.4 F, as arguments of :class:`CBMLLoss`.

        .. math::
            \alpha^P = \alpha^N = \frac{\mu_P + \mu_N}{2}, \quad
            \frac{\alpha^P}{\beta^P} = \frac{\mu_P^2 - \mu_N^2}{2 \sigma_P^2} + \log \delta^P, \quad
            \frac{\alpha^N}{\beta^N} = \frac{\mu_P^2 - \mu_N^2}{2 \sigma_N^2} - \log \delta^N

        with :math:`\delta^P = |N_i| / |P_i|^2` and :math:`\delta^N = |P_i| / |N_i|^2` of Eq. (23), for ``delta=1``.
        ValueError unless all are above 0.
        """
        alpha = (self.mean_pos + self.mean_neg) / 2
        squares = (self.mean_pos**2 - self.mean_neg**2) / 2
        ratios = {
            "beta_pos": squares / self.std_pos**2 + math.log(self.num_neg / self.num_pos**2),
            "beta_neg": squares / self.std_neg**2 - math.log(self.num_pos / self.num_neg**2),
        }
        exponents = {"alpha_pos": alpha, "alpha_neg": alpha}
        for name, ratio in ratios.items():
            if alpha <= 0 or ratio <= 0:
                raise ValueError(
                    f"Sec. 4.4 F gives {name} = {alpha:.3g} / {ratio:.3g} for these statistics, which is "
                    "no width above 0; set it by hand"
                )
            exponents[name] = alpha / ratio
        return exponents

    @property
    def is_centered(self) -> bool:
        """Whether negative pairs are orthogonal up to their spread, as after whitening."""
        return abs(self.mean_neg) < self.std_neg

    def trained_exponents(self) -> dict[str, float]:
        r"""Centers and widths for similarities after training from a whitened start.

        .. math::
            \alpha^P = \frac{1 + \mu_N}{2}, \quad \alpha^N = \alpha^P - \sigma_P, \quad
            \beta^P = \beta^N = \sigma_P

        Training moves positive pairs towards 1 and leaves negative ones around :math:`\mu_N`. Equal widths pull
        misplaced pairs of both kinds equally hard.
        """
        alpha = (1 + self.mean_neg) / 2
        width = self.std_pos
        return {"alpha_pos": alpha, "beta_pos": width, "alpha_neg": alpha - width, "beta_neg": width}


def _tiles_of_pairs(x: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    size = rows_per_tile(None, len(x), len(x), x.device) or max(1, len(x))
    for rows in tiles_of_rows(len(x), size):
        similarity = x[rows] @ x.T
        yield similarity, pair_masks(similarity, labels[rows], None, labels, first=rows.start)


def likelihood_ratio_figure(parts: Mapping[str, tuple[Tensor, Tensor]], seed: int = 0) -> Figure:
    r"""Plot similarity distributions of pairs and their ratio :math:`\Phi_N` (Fig. 3).

    ``parts``, ``{title: (embeddings [N, D], labels [N])}``, fill one column each, with up to 1,000 images.
    """
    from pml_ext.plugin import figures

    figure, panels = figures.subplots(6.8 * len(parts), 2 * len(parts))
    for (title, (embeddings, labels)), above, below in zip(parts.items(), panels[::2], panels[1::2], strict=True):
        chosen = figures.sample_indices(len(labels), _SHOWN, seed)
        x = embeddings.detach().cpu()[chosen]
        y = labels.cpu()[chosen]
        histograms = _histograms(x, y)
        _draw_distributions(above, histograms)
        note = _draw_ratio(below, histograms, x, y)
        figures.label_axes(above, legend=True, title=title, xlabel="cosine similarity", ylabel="density")
        figures.label_axes(below, legend=True, title=note, xlabel="cosine similarity", ylabel="positive / negative")
    return figure


class _Histograms(NamedTuple):
    edges: Tensor  # of the bins, [bins + 1]
    positive: Tensor  # the density of positive pairs in each bin, [bins]
    negative: Tensor


def _histograms(x: Tensor, labels: Tensor) -> _Histograms:
    similarity = gram(normalize(x.double()))
    positives, negatives = pair_masks(similarity, labels)
    low = min(float(similarity.min()), 1 - 1e-6)  # the range is not empty for collapsed embeddings
    edges = torch.linspace(low, 1.0, _BINS + 1, dtype=torch.float64)
    positive = torch.histogram(similarity[positives], edges, density=True).hist
    negative = torch.histogram(similarity[negatives], edges, density=True).hist
    return _Histograms(edges, positive, negative)


def _draw_distributions(axes: Any, histograms: _Histograms) -> None:
    from pml_ext.plugin import figures

    edges = histograms.edges.numpy()
    kinds = (
        ("positive pairs", histograms.positive, figures.BLUE),
        ("negative pairs", histograms.negative, figures.ORANGE),
    )
    for name, values, color in kinds:
        axes.stairs(values.numpy(), edges, fill=True, color=color, alpha=0.55, label=name)


def _draw_ratio(axes: Any, histograms: _Histograms, x: Tensor, labels: Tensor) -> str:
    from pml_ext.plugin import figures

    edges, positive, negative = histograms
    middle = (edges[1:] + edges[:-1]) / 2
    both = (positive > 0) & (negative > 0)
    ratio = positive[both] / negative[both]
    axes.semilogy(middle[both].numpy(), ratio.numpy(), ".", color=figures.GRAY, label="ratio of the two")
    note = ""
    try:
        known = PairStatistics.of(x, labels)
    except ValueError as error:  # collapsed embeddings, or an untrained network
        note = str(error).rpartition(": ")[2]
    else:
        quadratic = log_ratio(middle, known.mean_pos, known.std_pos, known.mean_neg, known.std_neg).exp()
        axes.semilogy(middle.numpy(), quadratic.numpy(), color=figures.BLUE, label="Eq. 20")
    if bool(both.any()):
        axes.set_ylim(float(ratio.min()) / 3, float(ratio.max()) * 3)
    return note


def likelihood_ratio_figures(run: RunView) -> dict[str, Figure]:
    """``{title: figure}`` of a run's training and test images."""
    if "train_sample" in run.splits:
        trained = "train_sample"
    else:
        trained = "train"
    tested = "queries" if run.queries == "query" else "test images"
    parts = {"training images": trained, tested: run.queries}
    shown = {title: (run.embeddings(split), run.labels(split)) for title, split in parts.items()}
    return {"Ratio of the distributions of positive and negative pairs": likelihood_ratio_figure(shown, run.seed)}
