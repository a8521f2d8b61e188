from .calculator import Evaluation as Evaluation, RetrievalAccuracyCalculator as RetrievalAccuracyCalculator
from .classification import nearest_class_mean as nearest_class_mean, related_means as related_means
from .clustering import ami as ami, kmeans as kmeans, nmi as nmi, pairwise_f1 as pairwise_f1, purity as purity
from .listed import (
    scores_of_pairs as scores_of_pairs,
    scores_of_triplets as scores_of_triplets,
    triplet_accuracy as triplet_accuracy,
    tuple_metrics as tuple_metrics,
)
from .metrics import (
    SMALLER_IS_BETTER as SMALLER_IS_BETTER,
    class_means as class_means,
    is_known_metric as is_known_metric,
    is_of_clusters as is_of_clusters,
    is_of_protocol as is_of_protocol,
    title_of as title_of,
)
from .neighbors import (
    NearestNeighbors as NearestNeighbors,
    Search as Search,
    default_neighbors as default_neighbors,
    has_faiss as has_faiss,
    inverted_lists as inverted_lists,
    learned_metric as learned_metric,
    nearest_of as nearest_of,
    neighbors_under as neighbors_under,
    reranked_under as reranked_under,
    without as without,
)
from .pairs import (
    VerificationPairs as VerificationPairs,
    listed_pairs as listed_pairs,
    pairs_of_classes as pairs_of_classes,
)
from .reranking import KReciprocal as KReciprocal, QueryExpansion as QueryExpansion, Reranking as Reranking
from .sampling import sample_indices as sample_indices
from .verification import (
    best_threshold as best_threshold,
    pair_scores as pair_scores,
    verification_metrics as verification_metrics,
    verify as verify,
)
