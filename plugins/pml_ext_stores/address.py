"""Addresses of stores as errors show them."""

import contextlib
import re
from collections.abc import Iterator

from pml_ext.errors import DataError, one_line, shortened


def masked(address: str) -> str:
    """The address of a store without secrets: of PostgreSQL, host and database."""
    scheme, colon, rest = address.partition(":")
    if scheme == "pgvector":
        from .conninfo import public_part

        return scheme + colon + public_part(rest)
    if "://" not in address:
        return re.sub(r"(password\s*=).*", r"\1***", address)
    start, _, rest = address.partition("://")
    user, _, place = rest.rpartition("@")
    hidden = "***@" if user else ""
    return f"{start}://{hidden}{place.partition('?')[0]}"


@contextlib.contextmanager
def database_errors(name: str, *errors: type[Exception]) -> Iterator[None]:
    """Convert a database's errors into a DataError without passwords."""
    try:
        yield
    except errors as error:
        raise DataError(
            f"{masked(name)} failed ({shortened(one_line(error), 100)}); type the command again to continue, what was "
            "written is kept"
        ) from error
