"""Requests over HTTP, as a browser or another program sends them."""

import html
import http.client
import io
import re
from urllib.parse import urlencode

from PIL import Image


def _png():
    file = io.BytesIO()
    Image.new("L", (8, 8), 90).save(file, "PNG")
    return file.getvalue()


PNG = _png()


def ask(served, path, method="GET", body=b"", **headers):
    """Status, headers and content; the path goes out as it is, with all its dots."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=600)
    connection.putrequest(method, path, skip_host="Host" in headers, skip_accept_encoding=True)
    for name, value in {"Content-Length": str(len(body)), **headers}.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders(body)
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read()


def upload(served, content, name="mine.png", **headers):
    return upload_all(served, [(name, content)], **headers)


def upload_all(served, files, fields=(), **headers):
    """Drop several photographs: their names and contents."""
    body = b""
    for name, value in fields:
        body += f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
    for name, content in files:
        lines = ["--b", f'Content-Disposition: form-data; name="photo"; filename="{name}"', "", ""]
        body += "\r\n".join(lines).encode() + content + b"\r\n"
    return ask(
        served, "/upload", "POST", body + b"--b--\r\n", Content_Type="multipart/form-data; boundary=b", **headers
    )


def post(served, path, fields, **headers):
    """Send a form."""
    return ask(
        served, path, "POST", urlencode(fields).encode(), Content_Type="application/x-www-form-urlencoded", **headers
    )


def content_of(answer, status=200):
    """The content of an answer, which has to have this status."""
    assert answer[0] == status
    return answer[2].decode()


def words(content):
    """The text of a page, without tags."""
    text = re.sub(r"<(script|style).*?</\1>|<[^>]*>", " ", content, flags=re.DOTALL)
    return " ".join(html.unescape(text).split())


def read(served, path, status=200):
    """The text of a page that is answered with this status."""
    return words(content_of(ask(served, path), status))
