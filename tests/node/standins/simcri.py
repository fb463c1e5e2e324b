#!/usr/bin/python3
"""crictl's few verbs that tests and people need on a node where it is not packaged.

  simcri ps [-a] | pods            one JSON object a line
  simcri id NAME                   the newest running container of that name
  simcri inspect ID                status and verbose info
  simcri stop [-t SECONDS] ID      without -t: at once, by SIGKILL
  simcri rm ID
An ID may be a container's name: the newest of that name is meant.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import grpc
from sim.pods import Runtime

STATES = ("CREATED", "RUNNING", "EXITED", "UNKNOWN")


def described(container) -> dict:
    return {
        "id": container.id,
        "name": container.metadata.name,
        "attempt": container.metadata.attempt,
        "state": STATES[container.state],
        "sandbox": container.pod_sandbox_id,
        "created_at": container.created_at,
        "pod": container.labels.get("io.kubernetes.pod.name", ""),
    }


def containers(runtime: Runtime) -> list[dict]:
    found = map(described, runtime.ask("ListContainers").containers)
    return sorted(found, key=lambda c: c["created_at"], reverse=True)


def resolve(runtime: Runtime, word: str) -> str:
    for container in containers(runtime):
        if container["name"] == word or container["id"].startswith(word):
            return container["id"]
    raise SystemExit(f"simcri: there is no container {word}")


def inspect(runtime: Runtime, word: str) -> dict:
    answer = runtime.ask("ContainerStatus", container_id=resolve(runtime, word), verbose=True)
    status = answer.status
    kept = {"id": status.id, "state": STATES[status.state], "attempt": status.metadata.attempt}
    kept.update(
        exit_code=status.exit_code, started_at=status.started_at, finished_at=status.finished_at
    )
    return {**kept, "info": json.loads(answer.info["info"])}


def run(runtime: Runtime, args: argparse.Namespace) -> None:
    match args.verb:
        case "ps":
            for container in containers(runtime):
                if args.all or container["state"] == "RUNNING":
                    print(json.dumps(container))
        case "pods":
            for pod in runtime.ask("ListPodSandbox").items:
                one = {"id": pod.id, "name": pod.metadata.name, "uid": pod.metadata.uid}
                print(
                    json.dumps(
                        {
                            **one,
                            "attempt": pod.metadata.attempt,
                            "state": ("READY", "NOTREADY")[pod.state],
                        }
                    )
                )
        case "id":
            print(resolve(runtime, args.id))
        case "inspect":
            print(json.dumps(inspect(runtime, args.id), indent=1))
        case "stop":
            runtime.ask(
                "StopContainer", container_id=resolve(runtime, args.id), timeout=args.timeout
            )
        case "rm":
            runtime.ask("RemoveContainer", container_id=resolve(runtime, args.id))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--socket", type=Path, default=Path("/run/containerd/containerd.sock"))
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("ps").add_argument("-a", dest="all", action="store_true")
    verbs.add_parser("pods")
    for name in ("id", "inspect", "rm"):
        verbs.add_parser(name).add_argument("id")
    stop = verbs.add_parser("stop")
    stop.add_argument("-t", dest="timeout", type=int, default=0)
    stop.add_argument("id")
    args = parser.parse_args()
    try:
        run(Runtime(args.socket), args)
    except grpc.RpcError as exc:
        print(f"simcri: {exc.details()}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
