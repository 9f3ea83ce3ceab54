"""A server with the part of the Hugging Face Hub's HTTP API that a push of weights calls.

Paths, fields and status codes are those that huggingface_hub 2.4.0 sends and reads (hf_api.py,
_commit_api.py, lfs.py); large files go by the LFS protocol, not by Xet.
"""

import base64
import contextlib
import hashlib
import http.server
import json
import re
import threading
from urllib.parse import unquote

TOKEN = "hf_of_a_test"


class Hub:
    """The state of the server: repositories, what was asked for, and faults to answer with.

    `repositories` maps ORG/NAME to {"private", "branches"}, a branch to a list of commits, each
    {"title", "files"}. `faults` maps a part of "METHOD /path" to a status code, or to "gone" for a
    connection that is closed without an answer.
    """

    def __init__(self):
        self.repositories, self.asked, self.faults, self.uploads = {}, [], {}, {}
        self.url = ""

    def files(self, name, branch):
        """Returns the contents of a branch by their names, after its last commit."""
        found = {}
        for commit in self.repositories[name]["branches"][branch]:
            found |= commit["files"]
        return found

    def create(self, body):
        name = f"{body['organization']}/{body['name']}"
        answer = {"url": f"{self.url}/{name}", "name": name, "id": name}
        if name in self.repositories:
            return 409, {**answer, "error": "You already created this model repo"}
        initial = {"title": "initial commit", "files": {".gitattributes": b""}}
        is_private = body.get("visibility", body.get("private")) in ("private", True)
        self.repositories[name] = {"private": is_private, "branches": {"main": [initial]}}
        return 200, answer

    def branch(self, method, name, branch):
        branches = self.repositories[name]["branches"]
        if method == "DELETE":
            del branches[branch]
        elif branch in branches:
            return 409, {"error": "Reference already exists"}
        else:
            branches[branch] = list(branches["main"])
        return 200, {}

    def preupload(self, body):
        return 200, {
            "files": [
                {
                    "path": it["path"],
                    "uploadMode": "lfs" if it["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                }
                for it in body["files"]
            ]
        }

    def batch(self, body):
        upload = {"href": f"{self.url}/upload/"}
        return 200, {
            "transfer": "basic",
            "objects": [
                {**it, "actions": {"upload": {"href": upload["href"] + it["oid"]}}}
                for it in body["objects"]
            ],
        }

    def commit(self, name, branch, lines):
        title, files = "", {}
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                title = value["summary"]
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.uploads[value["oid"]]
        commits = self.repositories[name]["branches"][branch]
        commits.append({"title": title, "files": files})
        oid = hashlib.sha1(title.encode()).hexdigest()
        return 200, {"commitUrl": f"{self.url}/{name}/commit/{oid}", "commitOid": oid}

    def answer(self, method, path, body):
        """Returns the status and the JSON of an answer."""
        if path == "/api/repos/create":
            return self.create(json.loads(body))
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if found := re.fullmatch(r"/api/models/(.+)/branch/(.+)", path):
            return self.branch(method, found[1], unquote(found[2]))
        if found := re.fullmatch(r"/api/models/(.+)/preupload/(.+)", path):
            return self.preupload(json.loads(body))
        if re.fullmatch(r"/.+\.git/info/lfs/objects/batch", path):
            return self.batch(json.loads(body))
        if found := re.fullmatch(r"/upload/(\w+)", path):
            assert hashlib.sha256(body).hexdigest() == found[1]
            self.uploads[found[1]] = body
            return 200, {}
        if found := re.fullmatch(r"/api/models/(.+)/commit/(.+)", path):
            lines = [json.loads(line) for line in body.splitlines()]
            return self.commit(found[1], unquote(found[2]), lines)
        return 404, {"error": f"the stub knows no {method} {path}"}


def handler_of(hub):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_any(self):
            path = self.path.partition("?")[0]
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            hub.asked.append(f"{self.command} {path}")
            fault = next((it for part, it in hub.faults.items() if part in hub.asked[-1]), None)
            if fault == "gone":
                self.close_connection = True
                return
            is_known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
            if fault:
                status, answer = fault, {"error": "refused by the test"}
            elif not is_known and not path.startswith("/upload/"):
                status, answer = 401, {"error": "Invalid username or password."}
            else:
                status, answer = hub.answer(self.command, path, body)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_any

        def log_message(self, *_):
            pass

    return Handler


@contextlib.contextmanager
def serving():
    """Yields a hub that answers at its `url`."""
    hub = Hub()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler_of(hub))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
