"""K-means, and metrics of the agreement of classes and clusters of N points, ``[N]`` each."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .neighbors import faiss_sees_a_gpu, has_faiss

MAX_MULTIPLICATIONS = 70_000_000_000  # per k-means iteration, summed over all starts


def kmeans(points: Tensor, clusters: int) -> Tensor:
    """The cluster of every point, ``[N]``, by k-means with a fixed seed.

    Keeps the best of ten random starts (faiss) or three k-means++ starts (scikit-learn), or fewer for large data.
    ValueError for fewer than 1 cluster, or more clusters than points.
    """
    if not 1 <= clusters <= len(points):
        raise ValueError(f"{clusters} clusters of {len(points)} points; wanted from 1 to as many as there are points")
    points = points.detach().float()
    starts = max(1, MAX_MULTIPLICATIONS // (points.shape[0] * clusters * points.shape[1]))
    if has_faiss():
        from ..pml import FaissKMeans

        search = FaissKMeans(
            niter=20, nredo=min(10, starts), min_points_per_centroid=1, gpu=points.is_cuda and faiss_sees_a_gpu()
        )
        return search(points, clusters)  # type: ignore[no-any-return]
    from sklearn.cluster import KMeans

    search = KMeans(clusters, n_init=min(3, starts), random_state=0)
    assigned = search.fit_predict(points.cpu().numpy())
    return torch.as_tensor(assigned, dtype=torch.int64, device=points.device)


def purity(labels: Any, clusters: Any) -> float:
    r"""The share of points in their cluster's most frequent class, from 0 to 1.

    .. math:: \frac{1}{N} \sum_k \max_c |\omega_k \cap c|
    """
    from sklearn.metrics.cluster import contingency_matrix

    table = contingency_matrix(np.asarray(labels), np.asarray(clusters), sparse=True)
    return float(table.max(axis=0).sum() / table.sum())


def nmi(labels: Any, clusters: Any) -> float:
    r"""The normalized mutual information of classes and clusters.

    .. math:: \frac{2 I(\omega; c)}{H(\omega) + H(c)}
    """
    from sklearn.metrics import normalized_mutual_info_score

    return float(normalized_mutual_info_score(np.asarray(labels), np.asarray(clusters)))


def nmi_majority(labels: Any, clusters: Any) -> float:
    r""":func:`nmi` with each cluster replaced by its most frequent class.

    .. math:: \frac{2 I(m; c)}{H(m) + H(c)}, \quad m_i = \arg\max_c |\omega_{k(i)} \cap c|

    Extra clusters are not penalized; ties go to the first class.

    *Source:* the program of Shah, Clustering and Querying, 2017; the paper's text defines :func:`nmi` instead.
    """
    from sklearn.metrics.cluster import contingency_matrix

    table = contingency_matrix(np.asarray(labels), np.asarray(clusters), sparse=True)
    places = np.unique(np.asarray(clusters), return_inverse=True)[1]
    return nmi(labels, np.asarray(table.argmax(axis=0)).ravel()[places])


def ami(labels: Any, clusters: Any) -> float:
    r"""The mutual information of classes and clusters, adjusted for chance.

    .. math:: \frac{I(\omega; c) - E[I]}{(H(\omega) + H(c)) / 2 - E[I]}

    :math:`E[I]` is the expectation over random permutations of the labels. Time grows with classes x clusters.
    """
    from sklearn.metrics import adjusted_mutual_info_score

    return float(adjusted_mutual_info_score(np.asarray(labels), np.asarray(clusters)))


def pairwise_f1(labels: Any, clusters: Any) -> float:
    r"""F1 over pairs (Manning et al., Introduction to Information Retrieval, 16.3).

    .. math:: F_1 = \frac{2 TP}{2 TP + FP + FN}

    True positives share class and cluster, false positives only the cluster, false negatives only the class. F1 is 0 if
    no pair shares anything.
    """
    from sklearn.metrics.cluster import pair_confusion_matrix

    (_, false_positive), (false_negative, true_positive) = pair_confusion_matrix(
        np.asarray(labels), np.asarray(clusters)
    )
    total = 2 * true_positive + false_positive + false_negative
    if total:
        return float(2 * true_positive / total)
    return 0.0
