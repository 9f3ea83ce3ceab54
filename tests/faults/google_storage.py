"""Google Cloud Storage on this machine, for the real clients: TensorFlow's and tensorstore's.

They have no option for another address, so they are led here as through a company's proxy:
`https_proxy` is a proxy that answers as the hosts of the store itself, and `CURL_CA_BUNDLE` the
authority that signs it. Objects are kept in memory. It knows what the clients use of the JSON and
the XML API: objects with their generations and preconditions, parts of them, lists, resumable
uploads, rewrites. A share of the requests fails on purpose: 503, a connection that is cut before
the work, and one that is cut after it, when it is done and nobody is told.

Source: https://cloud.google.com/storage/docs/json_api/v1 and /docs/resumable-uploads.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import http.server
import itertools
import json
import pathlib
import random
import re
import socketserver
import ssl
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from typing import Any

import google_crc32c
import trustme

HOSTS = ("storage.googleapis.com", "www.googleapis.com")
PAGE = 1000  # names of a list, as the service has it
FAULTS = ("unavailable", "cut before", "cut after")


@dataclasses.dataclass(frozen=True)
class Object:
    content: bytes
    generation: int


class Refused(Exception):
    """An answer that is not a success, by its number."""

    def __init__(self, status: int):
        super().__init__(status)
        self.status = status


class Store:
    """The objects of all buckets by their names, BUCKET/NAME, and which requests fail."""

    def __init__(self, faults: float = 0.0, seed: int = 0):
        self.objects: dict[str, Object] = {}
        self.uploads: dict[str, tuple[str, dict[str, str], bytes]] = {}
        self.faults = faults
        self.requests = self.failed = 0
        self._random = random.Random(seed)
        self._generations = itertools.count(1)
        self.lock = threading.Lock()

    def fault(self) -> str | None:
        """Counts a request, and returns how it fails."""
        with self.lock:
            self.requests += 1
            if self._random.random() >= self.faults:
                return None
            self.failed += 1
            return self._random.choice(FAULTS)

    def get(self, name: str, query: dict[str, str]) -> Object:
        found = self.objects.get(name)
        if not found:
            raise Refused(404)
        if query.get("ifGenerationMatch", str(found.generation)) != str(found.generation):
            raise Refused(412)
        if query.get("ifGenerationNotMatch") == str(found.generation):
            raise Refused(304)
        return found

    def put(self, name: str, content: bytes, query: dict[str, str]) -> Object:
        wanted, there = query.get("ifGenerationMatch"), self.objects.get(name)
        if wanted is not None and wanted != str(there.generation if there else 0):
            raise Refused(412)
        self.objects[name] = Object(content, next(self._generations))
        return self.objects[name]

    def delete(self, name: str, query: dict[str, str]) -> None:
        self.get(name, query)
        del self.objects[name]

    def listed(self, bucket: str, query: dict[str, str]) -> dict[str, Any]:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        start, end = query.get("startOffset", ""), query.get("endOffset", "\U0010ffff")
        items, prefixes = [], []
        for full in sorted(self.objects):
            of, _, name = full.partition("/")
            if of != bucket or not name.startswith(prefix) or not start <= name < end:
                continue
            below, found, _ = (
                name[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            )
            if found:
                prefixes.append(prefix + below + delimiter)
            else:
                items.append(name)
        after = query.get("pageToken", "")
        names = [it for it in sorted({*items, *prefixes}) if it > after]
        page = names[: int(query.get("maxResults", PAGE))]
        answer: dict[str, Any] = {
            "items": [
                described(bucket, it, self.objects[f"{bucket}/{it}"]) for it in page if it in items
            ]
        }
        if delimiter:
            answer["prefixes"] = [it for it in page if it not in items]
        if len(page) < len(names):
            answer["nextPageToken"] = page[-1]
        return answer


def described(bucket: str, name: str, found: Object) -> dict[str, str]:
    """Returns the metadata of an object."""
    digest = base64.b64encode(hashlib.md5(found.content, usedforsecurity=False).digest())
    crc = base64.b64encode(google_crc32c.Checksum(found.content).digest())
    time = "2026-01-01T00:00:00.000Z"
    return {
        "kind": "storage#object",
        "name": name,
        "bucket": bucket,
        "size": str(len(found.content)),
        "generation": str(found.generation),
        "metageneration": "1",
        "md5Hash": digest.decode(),
        "crc32c": crc.decode(),
        "updated": time,
        "timeCreated": time,
    }


class Handler(http.server.BaseHTTPRequestHandler):
    """A connection: CONNECT HOST:443, then TLS, then requests of the store."""

    protocol_version = "HTTP/1.1"
    store: Store
    context: ssl.SSLContext

    def do_CONNECT(self) -> None:
        if self.path.split(":")[0] not in HOSTS:
            self.send_error(403)
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.flush()
        self.connection = self.context.wrap_socket(self.connection, server_side=True)
        self.rfile = self.connection.makefile("rb")
        self.wfile = self.connection.makefile("wb", 0)
        self.close_connection = False

    def finish(self) -> None:
        super().finish()
        self.connection.close()  # the server closes the bare one alone

    def answer_one(self) -> None:
        body = self._body()
        fault = self.store.fault()
        if fault == "unavailable":
            self._send(503, b"")
            return
        if fault == "cut before":
            self._cut()
            return
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        try:
            with self.store.lock:
                status, content, headers = self._route(url.path, query, body)
        except Refused as refused:
            status, content, headers = refused.status, b"", {}
        if fault == "cut after":
            self._cut()
            return
        self._send(status, content, headers)

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = answer_one

    def _cut(self) -> None:
        self.close_connection = True

    def _route(
        self, path: str, query: dict[str, str], body: bytes
    ) -> tuple[int, bytes, dict[str, str]]:
        for (method, pattern), answer in ROUTES.items():
            match = re.fullmatch(pattern, path)
            if method == self.command and match:
                names = [urllib.parse.unquote(part) for part in match.groups()]
                return answer(self, query, body, *names)
        raise Refused(501)

    def one(self, query, body, bucket, name):
        found = self.store.get(f"{bucket}/{name}", query)
        if query.get("alt") == "media":
            return self.content(query, body, bucket, name)
        return 200, json.dumps(described(bucket, name, found)).encode(), {}

    def content(self, query, body, bucket, name):
        found = self.store.get(f"{bucket}/{name}", query)
        told = {"x-goog-generation": str(found.generation)}
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        size = len(found.content)
        if not wanted:
            return 200, found.content, told
        first, last = wanted.groups()
        begin = int(first) if first else max(size - int(last), 0)
        end = min(int(last) + 1, size) if first and last else size
        if begin >= size:
            return 416, b"", {"Content-Range": f"bytes */{size}"}
        told["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
        return 206, found.content[begin:end], told

    def listing(self, query, body, bucket):
        return 200, json.dumps(self.store.listed(bucket, query)).encode(), {}

    def bucket(self, query, body, bucket):
        return 200, json.dumps({"name": bucket, "location": "US"}).encode(), {}

    def layout(self, query, body, bucket):
        flat = {"hierarchicalNamespace": {"enabled": False}}
        return 200, json.dumps({"bucket": bucket, **flat}).encode(), {}

    def upload(self, query, body, bucket):
        name = query.get("name") or json.loads(body)["name"]
        if query["uploadType"] == "resumable":
            session = f"{len(self.store.uploads)}"
            self.store.uploads[session] = (f"{bucket}/{name}", query, b"")
            return 200, b"", {"Location": f"https://{HOSTS[1]}/upload/session/{session}"}
        made = self.store.put(f"{bucket}/{name}", body, query)
        return 200, json.dumps(described(bucket, name, made)).encode(), {}

    def proceed(self, query, body, session):
        name, of_upload, content = self.store.uploads[session]
        place = re.fullmatch(r"bytes (\*|\d+-\d+)/(\*|\d+)", self.headers.get("Content-Range", ""))
        if place and place[1] != "*":
            begin = int(place[1].split("-")[0])
            content = content[:begin] + body
        elif not place:
            content = body
        self.store.uploads[session] = (name, of_upload, content)
        if place and (place[2] == "*" or len(content) < int(place[2])):
            return 308, b"", {"Range": f"bytes=0-{len(content) - 1}"} if content else {}
        done = self.store.objects.get(name)
        if not done or done.content != content or "done" not in of_upload:
            done = self.store.put(name, content, of_upload)
            self.store.uploads[session] = (name, {**of_upload, "done": ""}, content)
        return 200, json.dumps(described(*name.split("/", 1), done)).encode(), {}

    def remove(self, query, body, bucket, name):
        self.store.delete(f"{bucket}/{name}", query)
        return 204, b"", {}

    def rewrite(self, query, body, bucket, name, to_bucket, to_name):
        found = self.store.get(f"{bucket}/{name}", {})
        made = self.store.put(f"{to_bucket}/{to_name}", found.content, query)
        told = {"done": True, "resource": described(to_bucket, to_name, made)}
        return 200, json.dumps(told).encode(), {}

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _send(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if status not in (204, 304):
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        del format, args


_OBJECT = r"/storage/v1/b/([^/]+)/o/([^/]+)"
ROUTES = {
    ("GET", _OBJECT): Handler.one,
    ("GET", r"/download/storage/v1/b/([^/]+)/o/([^/]+)"): Handler.content,
    ("GET", r"/storage/v1/b/([^/]+)/o"): Handler.listing,
    ("GET", r"/storage/v1/b/([^/]+)"): Handler.bucket,
    ("GET", r"/storage/v1/b/([^/]+)/storageLayout"): Handler.layout,
    ("POST", r"/upload/storage/v1/b/([^/]+)/o"): Handler.upload,
    ("PUT", r"/upload/session/(\d+)"): Handler.proceed,
    ("DELETE", _OBJECT): Handler.remove,
    ("POST", _OBJECT + r"/rewriteTo/b/([^/]+)/o/([^/]+)"): Handler.rewrite,
    ("GET", r"/(?!storage/v1/|upload/|download/)([^/]+)/(.+)"): Handler.content,
}


class _Server(socketserver.ThreadingTCPServer):
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is killed leaves in the middle; anything else is shown."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


@contextlib.contextmanager
def running(directory: pathlib.Path, store: Store) -> Iterator[dict[str, str]]:
    """Yields the environment in which a process finds the store at gs://."""
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*HOSTS).configure_cert(context)
    context.set_alpn_protocols(["http/1.1"])
    bundle = directory / "authority.pem"
    authority.cert_pem.write_to_path(str(bundle))
    handler = type("_Handler", (Handler,), {"store": store, "context": context})
    with _Server(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield {
            "https_proxy": f"http://127.0.0.1:{server.server_address[1]}",
            "CURL_CA_BUNDLE": str(bundle),
            "TENSORSTORE_CA_BUNDLE": str(bundle),
            "REQUESTS_CA_BUNDLE": str(bundle),
            "STORAGE_EMULATOR_HOST": f"https://{HOSTS[0]}",  # no credentials
            "NO_GCE_CHECK": "true",
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",
        }
        server.shutdown()
