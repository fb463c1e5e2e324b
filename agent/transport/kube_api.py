"""A Kubernetes API server: read one Node, patch it, watch it. python3-kubernetes reads the
credentials of a kubeconfig; urllib3 sends the requests, as it does for that library.

Facts about the library and the server:

* `import kubernetes` of 22.6 (Debian 12) and 30.1 (Debian 13) loads some 600 models and takes 80
  MiB; its kubeconfig loader needs none of them. So this module registers the packages above the
  loader as empty ones.
* urllib3 sleeps by itself for a Retry-After unless retries are off: the caller decides how long to
  wait.
* A watch whose connection broke looks like a quiet one. The server sends a bookmark about once a
  minute (kubernetes apiserver/pkg/storage/cacher: bookmarkFrequency), so a longer silence counts as
  the end.
* A watch may end with 410 inside a 200: an ERROR event, whose object is a Status.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from urllib.parse import urlencode

import urllib3

from ..model.errors import ApiError
from .yaml import as_json

CONNECT_WITHIN_S = 5.0
READ_WITHIN_S = 10.0
"""Between two bytes of a reply."""
QUIET_S = 90.0
"""The same for a watch."""
WATCH_S = 1500
LINE_BYTES = 8 << 20
"""No Node is larger: etcd stores at most 1.5 MiB."""
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"


class NodeEvent(NamedTuple):
    """One event of a watch."""

    kind: str
    """ADDED, MODIFIED, DELETED or BOOKMARK; empty for the first item: the watch has begun"""
    node: dict[str, Any]


class _Library(NamedTuple):
    """What is used of python3-kubernetes."""

    loader: Any
    configuration: Any
    error: type[Exception]


def _library() -> _Library:
    """KubeConfigLoader, Configuration and ConfigException, without importing the rest."""
    if "kubernetes" not in sys.modules:
        found = importlib.util.find_spec("kubernetes")
        if found is None or not found.submodule_search_locations:
            raise ApiError(
                "the Kubernetes client library is not installed: apt-get install gpu-gate-node"
            )
        places = list(found.submodule_search_locations)
        _bare("kubernetes", places)
        client = _bare("kubernetes.client", [f"{place}/client" for place in places])
        client["ApiClient"] = None
        client["Configuration"] = importlib.import_module(
            "kubernetes.client.configuration"
        ).Configuration
    loader = importlib.import_module("kubernetes.config.kube_config")
    return _Library(loader.KubeConfigLoader, loader.Configuration, loader.ConfigException)


def _bare(name: str, places: list[str]) -> dict[str, Any]:
    module = sys.modules[name] = ModuleType(name)
    module.__path__ = places
    return vars(module)


class ApiServer:
    """The API server and the credential of a kubeconfig. Not thread-safe. Every call raises
    ApiError."""

    def __init__(self, kubeconfig: str) -> None:
        self._kubeconfig = kubeconfig
        self._pool: urllib3.PoolManager | None = None
        self._configuration: Any = None
        self._read_at: tuple[int, int] | None = None

    def node(self, name: str) -> dict[str, Any]:
        """The Node as it is now."""
        return self._object(self._call("GET", f"/api/v1/nodes/{name}"))

    def patch(self, name: str, body: Mapping[str, Any], status: bool = False) -> dict[str, Any]:
        """Patch the Node, or its status. Returns the patched Node."""
        path = f"/api/v1/nodes/{name}" + ("/status" if status else "")
        return self._object(
            self._call("PATCH", path, body=body, kind=STRATEGIC if status else MERGE)
        )

    def watch(self, name: str, version: str) -> Iterator[NodeEvent]:
        """The events of this one Node since a resourceVersion, until the server ends the watch."""
        query = {
            "fieldSelector": f"metadata.name={name}",
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
        }
        answer = self._call("GET", "/api/v1/nodes", query, read_within_s=QUIET_S)
        yield NodeEvent("", {})
        try:
            for line in _lines(answer):
                event = json.loads(line)
                kind, found = str(event["type"]), event["object"]
                if not isinstance(found, dict):
                    raise TypeError("an event without an object")
                if kind == "ERROR":
                    raise ApiError(
                        f"the watch ended: {found.get('message', '?')}", int(found.get("code", 0))
                    )
                yield NodeEvent(kind, found)
        except (urllib3.exceptions.HTTPError, OSError) as exc:
            raise ApiError(f"the watch broke off: {_cause(exc)}") from exc
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise ApiError("the watch sent something that is not an event") from exc
        finally:
            answer.close()

    def close(self) -> None:
        """Drop connections and credential. The next call reads the kubeconfig again."""
        if self._pool is not None:
            self._pool.clear()
            self._pool = None

    def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        kind: str = "",
        read_within_s: float = READ_WITHIN_S,
    ) -> urllib3.BaseHTTPResponse:
        """The response, its body unread."""
        pool, configuration = self._connected()
        headers = {"Accept": "application/json", "User-Agent": "gpu-gate"}
        for setting in configuration.auth_settings().values():
            headers[setting["key"]] = setting["value"]
        if kind:
            headers["Content-Type"] = kind
        url = str(configuration.host) + path + ("?" + urlencode(query) if query else "")
        try:
            answer = pool.request(
                method,
                url,
                headers=headers,
                body=json.dumps(body).encode() if body is not None else None,
                timeout=_timeout(read_within_s),
                preload_content=False,
                redirect=False,
            )
            if 200 <= answer.status < 300:
                return answer
            payload = answer.read(1 << 16)
            answer.release_conn()
        except urllib3.exceptions.SSLError as exc:
            raise ApiError(
                f"TLS with {configuration.host} failed: {_cause(exc)}; "
                f"see certificate-authority in {self._kubeconfig}"
            ) from exc
        except (urllib3.exceptions.HTTPError, OSError) as exc:
            raise ApiError(f"{configuration.host} does not answer: {_cause(exc)}") from exc
        raise self._refused(answer, payload)

    def _refused(self, answer: urllib3.BaseHTTPResponse, body: bytes) -> ApiError:
        if answer.status == 401:
            self.close()
        try:
            message = str(json.loads(body)["message"])
        except (ValueError, KeyError, TypeError):
            message = str(answer.reason)
        after = answer.headers.get("Retry-After", "")
        return ApiError(
            f"the API server returned {answer.status}: {' '.join(message.split())[:200]}",
            answer.status,
            float(after) if after.isdecimal() else 0.0,
        )

    def _connected(self) -> tuple[urllib3.PoolManager, Any]:
        """Connections and credential, created again when the kubeconfig was replaced."""
        try:
            found = Path(self._kubeconfig).stat()
            stamp = (found.st_mtime_ns, found.st_ino)
            if self._pool is not None and stamp == self._read_at:
                return self._pool, self._configuration
            self.close()
            written = json.loads(as_json(Path(self._kubeconfig).read_bytes(), is_json=False))
        except OSError as exc:
            raise ApiError(
                f"could not read {self._kubeconfig} ({exc.strerror}): "
                "/usr/share/doc/gpu-gate-node/barrier.md shows how to create it"
            ) from exc
        except ValueError as exc:
            raise ApiError(f"{self._kubeconfig}: {exc}") from exc
        library = _library()
        configuration = library.configuration()
        try:
            library.loader(
                config_dict=written, config_base_path=str(Path(self._kubeconfig).parent)
            ).load_and_set(configuration)
            self._pool = _pool(configuration)
        except (library.error, OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
            raise ApiError(f"could not use {self._kubeconfig}: {_cause(exc)}") from exc
        self._configuration, self._read_at = configuration, stamp
        return self._pool, configuration

    @staticmethod
    def _object(answer: urllib3.BaseHTTPResponse) -> dict[str, Any]:
        try:
            found = json.loads(answer.read(LINE_BYTES))
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as exc:
            raise ApiError(f"the API server's response broke off: {_cause(exc)}") from exc
        finally:
            answer.release_conn()
        if not isinstance(found, dict) or found.get("kind") != "Node":
            raise ApiError(
                "the API server returned something that is not a Node: check the server address"
            )
        return found


def _timeout(read_within_s: float) -> urllib3.Timeout:
    """Without a limit for the whole request, because a watch lasts."""
    return urllib3.Timeout(connect=CONNECT_WITHIN_S, read=read_within_s)


def _pool(configuration: Any) -> urllib3.PoolManager:
    more = (
        {"assert_hostname": name}
        if (name := getattr(configuration, "tls_server_name", None))
        else {}
    )
    return urllib3.PoolManager(
        num_pools=1,
        maxsize=2,
        retries=False,
        cert_reqs="CERT_REQUIRED" if configuration.verify_ssl else "CERT_NONE",
        ca_certs=configuration.ssl_ca_cert,
        cert_file=configuration.cert_file,
        key_file=configuration.key_file,
        **more,
    )


def _lines(answer: Any) -> Iterator[bytes]:
    """Whole lines, as they arrive."""
    rest = b""
    for part in answer.stream(1 << 16, decode_content=False):
        *whole, rest = (rest + part).split(b"\n")
        yield from (line for line in whole if line.strip())
        if len(rest) > LINE_BYTES:
            raise ValueError("a line over the limit")


def _cause(exc: object) -> str:
    """The innermost message on one line: the library and urllib3 wrap it several times."""
    text = " ".join(str(exc).split())
    return (
        text.rpartition(": ")[2][:160] if "Error(" in text or "Connection" in text else text[:200]
    )
