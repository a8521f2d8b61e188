"""Addresses of PostgreSQL, as its client library reads them."""

import re
from typing import Any
from urllib.parse import quote

from pml_ext.errors import needs_extra

with needs_extra("pgvector", "the store pgvector:"):
    import psycopg
    import psycopg.conninfo


def read_address(address: str) -> dict[str, Any] | None:
    """The parts of an address as libpq reads them; None where it would misread a password."""
    try:
        parts: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(address)
    except psycopg.ProgrammingError:  # its text quotes the address
        return None
    url = re.match(r"postgres(?:ql)?://([^?]*)", address)
    user = url[1].rpartition("@")[0] if url is not None else ""
    ports = str(parts.get("port", "")).split(",")
    if "/" in user or "@" in user or not all(port.isdecimal() for port in ports if port):
        return None
    return parts


def public_part(address: str) -> str:
    """Host, port and database of an address; ``***`` if it cannot be read."""
    parts = read_address(address)
    if parts is None:
        return "***"
    host = str(parts.get("host", ""))
    if ":" in host:
        host = f"[{host}]"
    if parts.get("port"):
        host += f":{parts['port']}"
    return f"postgresql://{quote(host, safe=',:[]')}/{quote(str(parts.get('dbname', '')), safe='')}"
