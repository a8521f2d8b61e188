"""Reasons why a test cannot give a metric."""

from collections.abc import Iterable, Mapping

from .retrieval import QueryClasses, Sides


def reason_of_neighbors(sides: Sides, classes: QueryClasses) -> str:
    """Why no metric of neighbors is meaningful, or an empty string."""
    queries = len(sides.query)
    if queries == 0:
        return ""
    if bool(classes.lone_query.all()):
        return f"none of the {queries} queries has another item of its class in the gallery"
    if bool((classes.relevant >= sides.gallery_sizes().cpu()).all()):
        return "every item of the gallery is right for every query, as in a test of one class"
    return ""


def explained(blank: Mapping[str, str]) -> Iterable[str]:
    """Yield one sentence per reason, given the reasons by title of the metric."""
    titles: dict[str, list[str]] = {}
    for title, reason in blank.items():
        titles.setdefault(reason, []).append(title)
    for reason, metrics in titles.items():
        yield f"{', '.join(metrics)}: left blank, since {reason}"
