r"""The kinds of triplet loss of Shah's Sec. 5.1 and 5.2: each its value, its slopes, and which negatives it counts.

:math:`S = \{(a, p, n): a \neq p,\ d_{an} < d_{ap} + m\}` are the violating triplets of Sec. 5.2. Distances may have any
shapes that broadcast.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

Slopes = tuple[Tensor, Tensor | float, Tensor, Tensor | None]


@dataclasses.dataclass(frozen=True)
class Kind:
    """A loss of one triplet, of margin m."""

    margin: float

    def limit(self, d_ap: Tensor) -> Tensor:
        """Return the distance of a negative below which the triplet is in S."""
        return d_ap + self.margin


class Hinge(Kind):
    r""":math:`\max(0, d_{ap} - d_{an} + m)`: a hinge between functions of the two distances."""

    active_in_s = True  # whether the triplets of S are those whose hinge is above 0

    def measured(self, distances: Tensor) -> Tensor:
        """Return the compared quantity: the distances themselves."""
        return distances

    def slope(self, distances: Tensor) -> Tensor:
        """Return the derivative of :meth:`measured`."""
        return torch.ones_like(distances)

    def value(self, d_ap: Tensor, d_an: Tensor, d_pn: Tensor | None = None) -> Tensor:
        """Return the loss of triplets; d_pn has no part in it."""
        return (self.measured(d_ap) - self.measured(d_an) + self.margin).clamp(min=0)

    def active_limit(self, d_ap: Tensor) -> Tensor:
        """Return the distance of a negative below which the hinge is above 0."""
        return d_ap + self.margin


class SquaredHinge(Hinge):
    r""":math:`\max(0, d_{ap}^2 - d_{an}^2 + m)`."""

    active_in_s = False

    def measured(self, distances: Tensor) -> Tensor:
        """Return the compared quantity: squares."""
        return distances.square()

    def slope(self, distances: Tensor) -> Tensor:
        """Return the derivative of :meth:`measured`."""
        return 2 * distances

    def active_limit(self, d_ap: Tensor) -> Tensor:
        """Return the distance of a negative below which the hinge is above 0."""
        return (d_ap.square() + self.margin).clamp(min=0).sqrt()


class Ratio(Kind):
    r""":math:`r^2 - (1 - r)^2 = \tanh\frac{d_{ap} - d_{an}}{2}`, :math:`r = e^{d_{ap}} / (e^{d_{ap}} + e^{d_{an}})`."""

    def value(self, d_ap: Tensor, d_an: Tensor, d_pn: Tensor | None = None) -> Tensor:
        """Return the loss of triplets."""
        return self.value_and_slopes(d_ap, d_an, d_pn)[0]

    def value_and_slopes(self, d_ap: Tensor, d_an: Tensor, d_pn: Tensor | None) -> Slopes:
        """Return the loss of triplets, and its derivatives by d_ap, d_an and, where that has a part in it, d_pn."""
        value = torch.tanh((d_ap - d_an) / 2)
        slope = (1 - value.square()) / 2
        return value, slope, -slope, None


class Soft(Ratio):
    r""":math:`d_{ap} + \log(e^{m - d_{an}} + e^{m - d_{pn}})`."""

    def value_and_slopes(self, d_ap: Tensor, d_an: Tensor, d_pn: Tensor | None) -> Slopes:
        """Return the loss of triplets and its derivatives."""
        assert d_pn is not None
        value = d_ap + self.margin + torch.logaddexp(-d_an, -d_pn)
        share = torch.sigmoid(d_pn - d_an)  # of the term of d_an
        return value, 1.0, -share, share - 1


KINDS: dict[str, type[Hinge | Ratio]] = {"hinge": Hinge, "squared-hinge": SquaredHinge, "ratio": Ratio, "soft": Soft}
