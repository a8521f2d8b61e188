"""Tables of recipes: merging, dotted keys, and origins."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

# Settings of [data] that do not depend on the data set: how files are read, and whether labels or clusters train.
KEPT_FOR_ANY_DATA = ("workers", "unreadable", "labels", "pseudo", "views")
# Settings of [data] that somebody's images keep, whatever their folder or table is called.
KEPT_FOR_OWN_IMAGES = ("images", "image_size")
OWN_IMAGES = ("folder", "table")  # data sets of somebody's images, before the ":" of their names
WORD_OR_TABLE = ("freeze",)  # keys whose word, "trunk", is not the name of their table
NAMES_ALONE = ("trunk", "miner", "regularizer")  # keys whose value may be a name instead of a table
INHERITED = "(inherited)"  # entry of a choice of [sweep] that extends others: the keys that it does not set itself
ABOUT_KEYS = ("origin", "tune")  # tables whose entries are about settings, by their dotted keys
NO_EFFECT = "without effect here"  # origin of settings that others make useless


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge tables key by key; a table with another ``name`` replaces the old one.

    ``[data]`` keeps the settings in :data:`KEPT_FOR_ANY_DATA`, and all settings for another place of the same kind. A
    group in ``[tune]`` replaces the ranges of its keys. Settings that are set again lose inherited origins, and those
    of replaced tables their ranges.
    """
    result, _ = _merged(base, over)
    return result


def overridden(tables: Mapping[str, Any], settings: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return tables with other values of dotted keys; the last value of a key wins.

    Names go first, outermost first, because a new name replaces its table.
    """
    settings = list(settings)
    result = dict(tables)
    names: list[tuple[str, Any]] = []
    for key, value in settings:
        names.extend(_names_inside(key, value))
    for key, name in sorted(names, key=_depth_of_name):
        result = merged(result, nested(key, name))
    for key, value in settings:
        if isinstance(value, Mapping):
            result = merged(result, nested(key, _without_names(key, value, result)))
        elif not _is_name(key):
            result = merged(result, nested(key, value))
    return result


def _names_inside(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        if key in ABOUT_KEYS:
            return
        for inner, inner_value in value.items():
            yield from _names_inside(f"{key}.{inner}", inner_value)
    elif _is_name(key):
        yield key, value


def _depth_of_name(setting: tuple[str, Any]) -> int:
    """Return 0 for ``loss.name`` and ``loss``, 1 for ``loss.miner``."""
    key, _ = setting
    return key.removesuffix(".name").count(".")


def _is_name(key: str) -> bool:
    return "." not in key or key.rpartition(".")[2] in ("name", *NAMES_ALONE)


def _without_names(key: str, table: Mapping[str, Any], tables: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a table without names, and without settings of other names."""
    if key in ABOUT_KEYS:
        return table
    if "name" in table and table["name"] != name_or_value(key, tables):
        return {}
    kept = {}
    for inner, value in table.items():
        inner_key = f"{key}.{inner}"
        if isinstance(value, Mapping):
            kept[inner] = _without_names(inner_key, value, tables)
        elif not _is_name(inner_key):
            kept[inner] = value
    return kept


def name_or_value(key: str, tables: Mapping[str, Any]) -> Any:
    """Return a dotted key's value, or a table's name; None without either."""
    found: Any = tables
    for part in key.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(part)
    return found.get("name") if isinstance(found, Mapping) else found


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the merged tables, and the dotted keys of replaced tables."""
    result = dict(base)
    replaced: list[str] = []
    for key, value in over.items():
        old: Any = result.get(key)
        if isinstance(old, str) and isinstance(value, dict) and key not in WORD_OR_TABLE:
            old = {"name": old}  # a string is short for a table with this name
        if not (isinstance(old, dict) and isinstance(value, dict)):
            result[key] = value
            if isinstance(old, dict):
                replaced.append(key)
        elif key == "origin":
            result[key] = _merged_origins(old, value, over)
        elif key == "tune":
            result[key] = {name: entry for name, entry in old.items() if not inside(name, value)} | value
        elif value.get("name", old.get("name")) == old.get("name"):
            result[key], replaced_inside = _merged(old, value)
            replaced += [f"{key}.{inner}" for inner in replaced_inside]
        else:
            result[key] = value
            if key == "data":
                result[key] = {**_kept_for_other_data(old, value["name"]), **value}
            replaced.append(key)
    _drop_ranges(result, over, replaced)
    if INHERITED in result and INHERITED not in over:
        result[INHERITED] = [key for key in result[INHERITED] if key not in flat(over)]
    return result, replaced


def _kept_for_other_data(old: Mapping[str, Any], name: Any) -> dict[str, Any]:
    old_kind, has_place, _ = str(old.get("name")).partition(":")
    kind, _, _ = str(name).partition(":")
    if has_place and kind == old_kind and kind in OWN_IMAGES:
        return dict(old)
    kept = [*KEPT_FOR_ANY_DATA]
    if kind in OWN_IMAGES and old_kind in OWN_IMAGES:
        kept += KEPT_FOR_OWN_IMAGES
    return {key: setting for key, setting in old.items() if key in kept}


def _merged_origins(old: Mapping[str, Any], new: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    given = flat({name: table for name, table in over.items() if name != "origin"})
    set_again = [key for key in old if inside(key, new) and any(inside(each, [key]) for each in given)]
    return {key: entry for key, entry in old.items() if key not in set_again} | dict(new)


def _drop_ranges(result: dict[str, Any], over: Mapping[str, Any], replaced: Sequence[str]) -> None:
    ranges = result.get("tune")
    if not isinstance(ranges, dict):
        return
    given = over.get("tune", ())
    result["tune"] = {key: each for key, each in ranges.items() if key in given or not inside(key, replaced)}


def inside(key: str, groups: Iterable[str]) -> bool:
    """Return whether a dotted key equals, or lies inside, one of the groups."""
    return any(f"{key}.".startswith(f"{group}.") for group in groups)


def origin_of(key: str, origins: Mapping[str, str]) -> str:
    """Return a key's entry in ``[origin]``, or its nearest group's, or an empty string."""
    around = [group for group in origins if inside(key, [group])]
    return origins[max(around, key=len)] if around else ""


def origins_of(settings: Mapping[str, Any], origins: Mapping[str, str]) -> dict[str, str]:
    """Return each setting's origin; settings without effect do not inherit a group's."""
    unused = []
    if settings["schedule.name"] != "multi-step":
        unused += ["schedule.milestones", "schedule.gamma"]
    is_constant = settings["schedule.name"] == "constant" and not settings["schedule.warmup"]
    if is_constant or "loss.optimizer.scheduled" in settings:
        unused.append("optimizer.scheduled")
    if settings.get("data.views") == 1:
        unused.append("data.views")
    if "data.relation.name" not in settings:
        unused += [key for key in settings if key.endswith("loss.relation")]
    known = dict.fromkeys(unused, NO_EFFECT) | dict(origins)
    return {key: origin_of(key, known) for key in settings}


def flat(tables: Any, prefix: str = "") -> dict[str, Any]:
    """Return the values of nested tables, and lists of tables, by dotted key."""
    if isinstance(tables, list) and tables and isinstance(tables[0], dict):
        tables = {str(index): table for index, table in enumerate(tables)}
    if not isinstance(tables, dict):
        return {prefix: tables}
    values: dict[str, Any] = {}
    for key, value in tables.items():
        values |= flat(value, f"{prefix}.{key}" if prefix else key)
    return values


def nested(key: str, value: Any) -> Any:
    """Return nested tables that set a dotted key; an empty key gives the value itself."""
    parts = key.split(".") if key else []
    for part in reversed(parts):
        value = {part: value}
    return value
