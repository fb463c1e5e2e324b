#!/usr/bin/env python3
"""A shell on a fresh node with this checkout's .deb and the stand-ins: shell.py [SUITE]"""

from __future__ import annotations

import sys

import tree
from nspawn import Node, NodeError
from view import PORT, viewed

WELCOME = """
A node with {version}, the package and the stand-ins. It goes when you leave the shell (exit or Ctrl-D).

  gpu-gate status                    what the gate thinks
  journalctl -fu gpu-gate            what it does
  systemctl list-jobs                who waits for it
  ls /opt/gpu-gate-sim               the stand-ins
  {page:<34} its page, for a browser on this machine
"""


def main(words: list[str]) -> int:
    suite = words[0] if words else "bookworm"
    if suite not in tree.SUITES:
        print(
            f"There is no suite {suite}; SUITE= is one of {', '.join(tree.SUITES)}.",
            file=sys.stderr,
        )
        return 2
    try:
        with Node(tree.layers(suite, tree.build_deb())) as node:
            node.boot()
            version = node.run("systemctl --version | head -n 1").stdout.strip()
            with viewed(node, PORT) as page:
                print(WELCOME.format(version=version, page=page))
                node.shell()
    except NodeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
