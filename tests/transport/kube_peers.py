"""A stand-in API server on the real wire: TLS, bearer tokens, one Node, its watch, patches by their
types.

It holds a Node as JSON and does to it what kubernetes does: every write makes a new
resourceVersion, a patch that names another one is a conflict, a merge patch replaces lists, a
strategic one merges conditions by their type, and /status and the rest of the object are written
apart. What goes wrong is asked for: `faults`, `cut()`, `forget()`.

Run as a program on a node: kube_peers.py FOLDER NODE.json PORT makes FOLDER/kubeconfig, keeps
FOLDER/node.json.
"""

from __future__ import annotations

import contextlib
import copy
import json
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKEN = "a-token"
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
JSON = dict[str, Any]


def certificates(folder: Path) -> None:
    """A CA, and a certificate of it for 127.0.0.1."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    folder.mkdir(parents=True, exist_ok=True)
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    openssl(
        "req",
        "-x509",
        *key,
        "-keyout",
        "ca.key",
        "-out",
        "ca.pem",
        "-subj",
        "/CN=test CA",
        "-addext",
        "basicConstraints=critical,CA:TRUE",
        "-addext",
        "keyUsage=critical,keyCertSign",
    )
    openssl("req", *key, "-keyout", "key.pem", "-out", "csr.pem", "-subj", "/CN=api")
    (folder / "ext").write_text("subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")
    openssl(
        "x509",
        "-req",
        "-in",
        "csr.pem",
        "-CA",
        "ca.pem",
        "-CAkey",
        "ca.key",
        "-CAcreateserial",
        "-days",
        "2",
        "-extfile",
        "ext",
        "-out",
        "cert.pem",
    )


def kubeconfig(path: Path, port: int, ca: Path, token: str = TOKEN) -> Path:
    path.write_text(
        json.dumps(
            {  # JSON is YAML
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
                "clusters": [
                    {
                        "name": "k",
                        "cluster": {
                            "server": f"https://127.0.0.1:{port}",
                            "certificate-authority": str(ca),
                        },
                    }
                ],
                "users": [{"name": "u", "user": {"token": token}}],
            }
        )
    )
    return path


def merged(value: Any, patch: Any) -> Any:
    """RFC 7386: null removes, an object is merged, anything else replaces."""
    if not isinstance(patch, dict):
        return patch
    found = dict(value) if isinstance(value, dict) else {}
    for key, part in patch.items():
        if part is None:
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key), part)
    return found


class Api:
    """The server; `node` is what it holds. Every change goes by `write`."""

    def __init__(self, folder: Path, node: JSON, port: int = 0) -> None:
        self.node = copy.deepcopy(node)
        self.name = node["metadata"]["name"]
        self.changed = threading.Condition(threading.RLock())
        self.version, self.oldest = 100, 100
        self.events: list[tuple[int, str, JSON]] = []
        self.writes: list[JSON] = []
        "bodies of the patches that were taken, in order"
        self.requests: list[str] = []
        self.faults: list[tuple[str, int, JSON]] = []
        """(METHOD and the beginning of the path, status, headers): the next request like it is
        answered so"""
        self.token = TOKEN
        self.taints_forbidden = False
        "as NodeRestriction does to a kubelet's credential"
        self.watching = 0
        self.generation = 0
        "of watches; cut() ends those of an older one"
        self.on_change: Callable[[JSON], None] = lambda _: None
        self.set(lambda _: None)
        handler = type("Handler", (_Handler,), {"api": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        self.server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
        self.server.socket = context.wrap_socket(
            self.server.socket, server_side=True, do_handshake_on_connect=False
        )
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def set(self, change: Callable[[JSON], object]) -> None:
        """Change the Node as another client would."""
        with self.changed:
            change(self.node)
            self.version += 1
            self.node["metadata"]["resourceVersion"] = str(self.version)
            self._tell("MODIFIED", copy.deepcopy(self.node))
            self.on_change(self.node)

    def patch(self, body: JSON, kind: str, status: bool) -> tuple[int, JSON]:
        with self.changed:
            asked = body.get("metadata", {}).get("resourceVersion")
            if asked not in (None, self.node["metadata"]["resourceVersion"]):
                return 409, failure(409, "the object has been modified")
            if self.taints_forbidden and "taints" in body.get("spec", {}):
                return 403, failure(403, f'node "{self.name}" is not allowed to modify taints')
            after = merged(self.node, body)
            if kind == STRATEGIC and "conditions" in body.get("status", {}):
                kept = {c["type"]: c for c in self.node["status"].get("conditions", [])}
                kept |= {
                    c["type"]: {**kept.get(c["type"], {}), **c}
                    for c in body["status"]["conditions"]
                }
                after["status"]["conditions"] = list(kept.values())
            keep = ("metadata", "spec") if status else ("status",)
            after = {**after, **{part: self.node[part] for part in keep}}
            self.writes.append(body)
            self.set(lambda node: (node.clear(), node.update(copy.deepcopy(after))))
            return 200, copy.deepcopy(self.node)

    def delete(self) -> None:
        with self.changed:
            self._tell("DELETED", copy.deepcopy(self.node))
            self.name = ""

    def bookmark(self) -> None:
        with self.changed:
            self.version += 1
            self._tell(
                "BOOKMARK", {"kind": "Node", "metadata": {"resourceVersion": str(self.version)}}
            )

    def cut(self) -> None:
        """Every watch ends without an error."""
        with self.changed:
            self.generation += 1
            self.changed.notify_all()

    def forget(self) -> None:
        """The history up to now has expired: a watch from there gets 410."""
        with self.changed:
            self.version += 1
            self.oldest = self.version
            self.events.clear()
            self.generation += 1
            self.changed.notify_all()

    def close(self) -> None:
        self.cut()
        self.server.shutdown()
        self.server.server_close()

    def _tell(self, kind: str, found: JSON) -> None:
        self.events.append((self.version, kind, found))
        self.changed.notify_all()

    def follow(self, version: int) -> Iterator[tuple[str, JSON]]:
        """Events after a version, as they come."""
        generation, done = self.generation, len([e for e in self.events if e[0] <= version])
        if version < self.oldest:
            yield "ERROR", failure(410, "too old resource version")
            return
        while True:
            with self.changed:
                while len(self.events) == done and self.generation == generation:
                    self.changed.wait()
                if self.generation > generation:
                    raise ConnectionResetError
                fresh, done = self.events[done:], len(self.events)
            for _, kind, found in fresh:
                yield kind, found


def failure(code: int, message: str) -> JSON:
    return {"kind": "Status", "status": "Failure", "code": code, "message": message}


class _Handler(BaseHTTPRequestHandler):
    api: Api
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None: ...

    def setup(self) -> None:
        with contextlib.suppress(OSError):
            self.request.do_handshake()
        super().setup()

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            super().handle()

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        if not self._may():
            return
        query = {name: found[0] for name, found in parse_qs(asked.query).items()}
        if query.get("watch") == "true":
            self._watch(int(query["resourceVersion"]))
        elif asked.path == f"/api/v1/nodes/{self.api.name}":
            self._say(200, {"kind": "Node", "apiVersion": "v1", **copy.deepcopy(self.api.node)})
        else:
            self._say(404, failure(404, f"nodes {asked.path.rpartition('/')[2]!r} not found"))

    def do_PATCH(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._may():
            return
        kind = self.headers["Content-Type"]
        if kind not in (MERGE, STRATEGIC):
            self._say(415, failure(415, f"{kind} is not supported"))
            return
        status = self.path.endswith("/status")
        if self.path.removesuffix("/status") != f"/api/v1/nodes/{self.api.name}":
            self._say(404, failure(404, "not found"))
            return
        code, found = self.api.patch(body, kind, status)
        self._say(code, {"kind": "Node", "apiVersion": "v1", **found} if code == 200 else found)

    def _may(self) -> bool:
        said = f"{self.command} {self.path}"
        with self.api.changed:
            self.api.requests.append(said)
            fault = next((f for f in self.api.faults if said.startswith(f[0])), None)
            if fault:
                self.api.faults.remove(fault)
        if fault and fault[1] == 0:
            self.close_connection = True
            self.connection.close()
        elif fault:
            self._say(fault[1], failure(fault[1], "asked for by the test"), fault[2])
        elif self.headers.get("Authorization") != f"Bearer {self.api.token}":
            self._say(401, failure(401, "Unauthorized"))
        else:
            return True
        return False

    def _say(self, code: int, body: JSON, headers: JSON | None = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        for name, value in {
            "Content-Type": "application/json",
            "Content-Length": len(data),
            **(headers or {}),
        }.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(data)

    def _watch(self, version: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        self.api.watching += 1
        try:
            for kind, found in self.api.follow(version):
                line = json.dumps({"type": kind, "object": found}).encode() + b"\n"
                self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")
        finally:
            self.api.watching -= 1


def main(folder: Path, node: JSON, port: int) -> None:
    """node.json is there before a writer has its answer."""

    def keep(found: JSON) -> None:
        new = folder / "node.new"
        new.write_text(json.dumps(found))
        new.rename(folder / "node.json")

    certificates(folder)
    api = Api(folder, node, port)
    api.on_change = keep
    kubeconfig(folder / "kubeconfig", api.port, folder / "ca.pem")
    api.set(lambda _: None)
    threading.Event().wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()), int(sys.argv[3]))
