"""Density adaptivity: a regularizer with a learned target density per class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pml_ext.plugin import (
    ClassLabels,
    Float64Buffers,
    LabeledRegularizer,
    RunView,
    check_count,
    check_number,
    reduced,
)

from .functional import class_densities, density_terms, slot_densities, slots, streamed_class_densities
from .records import compared, plotted, read_rows, write_epoch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TABLE = "density.csv"
_SHOWN = 500  # largest number of images on a map


class DensityRegularizer(Float64Buffers, LabeledRegularizer):
    r"""Regularizer that fits class densities to learned targets, Eq. (6) and (8).

    .. math::
        \frac{1}{C} \sum_c (D_{avg}(S_c) - \alpha_c)^2 - \frac{1}{C} \sum_c \alpha_c
        + \frac{w}{C^2} \sum_{i, j} (b_j \alpha_i - b_i \alpha_j)^2, \qquad b_c = (D^{(0)}_{avg}(S_c))^\eta \quad (8)

    over the C classes of the batch, with :math:`D_{avg}` the variance of a class's normalized embeddings (Eq. 5). The
    targets :math:`\alpha_c` are parameters (``target_density``); the second term increases them, so that classes do not
    collapse. A run computes the base densities :math:`D^{(0)}` from the trunk's features, before training; without them
    this is Eq. (6).

    Use it as ``RegularizedLoss(ContrastiveLoss(...), DensityRegularizer(num_classes=98), weight=...)``, with several
    images per class (10 x 10 in the paper).

    *Weight:* about 0.1 for a loss that averages, PML's default; 10 would destroy the embedding. The paper's 10 is for
    losses summed over the batch; it is 20 for PML's ``ContrastiveLoss`` with a ``SumReducer``.

    ``collect_stats`` records ``density_loss``, ``target_loss`` and ``correlation_loss``; a run writes
    ``records/density.csv``. *Cost:* ``O(B D)``.

    *Source:* Li et al., Deep Metric Learning with Density Adaptivity, IEEE Transactions on Multimedia, 2019.

    Args:
        num_classes: number of training classes.
        initial_density: initial value of the targets; defaults are the paper's.
        base_density: :math:`D^{(0)}` of every class, 0 or more, of length ``num_classes``; the third term leaves out
            classes with 0.
        eta: :math:`\eta`, exponent of the base densities.
        correlation_weight: w, the weight of the penalty; 0 disables it.
        class_labels: the label of every class; None if labels are 0 to ``num_classes - 1``.
        collect_stats: whether the terms are recorded.

    Raises:
        ValueError: in a call, a label that is not a class label.

    Example:
        >>> regularizer = DensityRegularizer(num_classes=2, class_labels=[101, 102])
        >>> regularizer(torch.eye(4), torch.tensor([101, 101, 102, 102])).item()
        -0.5

    *Source:* Li et al., 2019, https://arxiv.org/abs/1909.03909.
    """

    base_density: Tensor
    density_sums: Tensor

    def __init__(
        self,
        num_classes: int,
        initial_density: float = 0.5,
        base_density: Sequence[float] | Tensor | None = None,
        eta: float = 0.5,
        correlation_weight: float = 1.0,
        class_labels: Sequence[int] | Tensor | None = None,
        collect_stats: bool | None = None,
    ) -> None:
        check_count(self, "num_classes", num_classes)
        check_number(self, "initial_density", initial_density)
        check_number(self, "eta", eta, least=0)
        check_number(self, "correlation_weight", correlation_weight, least=0)
        super().__init__(collect_stats=collect_stats)
        self.num_classes = num_classes
        self.initial_density = initial_density
        self.eta = eta
        self.correlation_weight = correlation_weight
        self.target_density = nn.Parameter(torch.full((num_classes,), float(initial_density)))
        self._has_base = base_density is not None
        self.register_buffer("base_density", self._base(base_density))
        self.classes = ClassLabels(num_classes, class_labels)
        self.register_buffer("density_sums", torch.zeros(2, num_classes, dtype=torch.float64))  # over an epoch
        self.add_to_recordable_attributes(list_of_names=["eta", "correlation_weight"], is_stat=False)
        self.add_to_recordable_attributes(
            list_of_names=["density_loss", "target_loss", "correlation_loss"], is_stat=True
        )

    def _base(self, values: Sequence[float] | Tensor | None) -> Tensor:
        if values is None:
            return torch.zeros(self.num_classes, dtype=torch.float64)
        base = torch.as_tensor(values, dtype=torch.float64).detach().cpu().clone()
        if base.shape != (self.num_classes,):
            raise ValueError(
                f"base_density must have one value for each of the {self.num_classes} classes; "
                f"got shape {tuple(base.shape)}"
            )
        if not (base.isfinite() & (base >= 0)).all():
            raise ValueError("base_density must be finite and 0 or more for every class")
        return base

    # The equation

    def compute_loss(self, embeddings: Tensor, labels: Tensor) -> dict[str, dict[str, Any]]:
        """Eq. (8), reduced; on an accelerator, only the first call checks for unknown labels."""
        self.classes.check(labels, type(self).__name__)
        batch = slots(self.classes(labels), embeddings.dtype)
        targets = self.target_density.index_select(0, batch.classes).to(embeddings.dtype)
        base = self.base_density.index_select(0, batch.classes).to(embeddings.dtype)
        densities = slot_densities(embeddings, batch)
        present = (batch.counts > 0).to(embeddings.dtype)
        fit, spread, correlation = density_terms(densities, targets, base, present, self.eta)
        if self.collect_stats:
            self.density_loss = fit.detach()
            self.target_loss = -spread.detach()
            self.correlation_loss = correlation.detach()
            measured = torch.stack([densities.detach(), present]).to(self.density_sums.dtype)
            self.density_sums.index_add_(1, batch.classes, measured)  # a class counts once per batch
        return reduced(fit - spread + self.correlation_weight * correlation)

    # Taking part in a run

    def prepare(self, run: RunView) -> None:
        """Compute base densities from the trunk's features, unless they were given."""
        if self._has_base or not self.correlation_weight:
            return
        base = streamed_class_densities(run.batches("train", layer="trunk"), self.classes, self.num_classes)
        self.base_density.copy_(base)

    def start_epoch(self, run: RunView) -> None:
        """Write targets and mean densities of the previous epoch."""
        if run.rank == 0:
            self._write(run.folder / "records" / _TABLE, run.epoch - 1)
        self.density_sums.zero_()

    def _write(self, path: Path, epoch: int) -> None:
        targets = self.target_density.detach()[self.classes.rows]
        sums, counts = self.density_sums[:, self.classes.rows]
        densities = sums / counts  # NaN for classes without measurements
        write_epoch(path, epoch, self.classes.ordered.tolist(), targets.tolist(), densities.tolist())

    def figures(self, run: RunView) -> dict[str, Figure]:
        """Plot targets and densities by epoch, density histograms, and a map (Fig. 5)."""
        from pml_ext.plugin import figures

        path = run.folder / "records" / _TABLE
        self._write(path, run.epoch)
        train_split = "train_sample" if "train_sample" in run.splits else "train"
        train_points = (run.embeddings(train_split), run.labels(train_split))
        test_points = (run.embeddings(run.queries), run.labels(run.queries))
        densities = {
            "training classes": class_densities(*train_points).tolist(),
            f"{run.queries} classes": class_densities(*test_points).tolist(),
        }
        return {
            "Target densities, and densities measured in training, of every class": plotted(read_rows(path)),
            "Densities of training and test classes": compared(densities),
            "The embeddings of training images in two dimensions: t-SNE": figures.projections(
                {"training classes": train_points}, max_items=_SHOWN, seed=run.seed
            ),
        }
