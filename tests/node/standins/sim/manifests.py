"""Static pod manifests: the YAML of one folder as the pods a kubelet makes of it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import yaml

Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Pod:
    uid: str
    """The hash of the manifest: a changed file is another pod."""
    name: str
    namespace: str
    labels: dict[str, str]
    annotations: dict[str, str]
    spec: dict

    @property
    def containers(self) -> list[dict]:
        return self.spec["containers"]

    @property
    def grace_s(self) -> int:
        return int(self.spec.get("terminationGracePeriodSeconds", 30))

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"

    def asked(self, container: dict) -> dict[str, int]:
        """Device-plugin resources that a container asks for: extended names have a slash."""
        limits = (container.get("resources") or {}).get("limits") or {}
        return {name: int(count) for name, count in limits.items() if "/" in name}


def parse(text: str, path: Path, node: str) -> Pod:
    """Raises ValueError for what is no pod."""
    try:
        data = yaml.load(text, Loader)
        if data["kind"] != "Pod" or not data["spec"]["containers"]:
            raise ValueError(f"{path}: not a pod")
        meta = data["metadata"]
        digest = hashlib.md5(json.dumps([data, node, str(path)], sort_keys=True).encode())
        return Pod(
            uid=digest.hexdigest(),
            name=f"{meta['name']}-{node}",
            namespace=meta.get("namespace", "default"),
            labels=meta.get("labels") or {},
            annotations=meta.get("annotations") or {},
            spec=data["spec"],
        )
    except (yaml.YAMLError, KeyError, TypeError) as exc:
        raise ValueError(f"{path}: {exc!r}") from exc


def read_all(folder: Path, node: str, complain) -> list[Pod]:
    """Hidden files are none of the kubelet's, as with the real one."""
    pods = []
    for path in sorted(folder.glob("*")) if folder.is_dir() else []:
        if path.name.startswith(".") or not path.is_file():
            continue
        try:
            pods.append(parse(path.read_text(), path, node))
        except (ValueError, OSError) as exc:
            complain(path, exc)
    return pods
