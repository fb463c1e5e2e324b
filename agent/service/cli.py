"""`gpu-gate VERB`: finds the verb and runs it. Each verb is a file in commands/.

A verb imports only what it needs: `run` and `wait` start without argparse.

Exit status: 0 yes · 1 no (not ready, a broken link, a problem) · 2 wrong usage ·
3 the agent does not answer · 4 unknown (doctor, access, image-check). `wait` always ends with 0.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .. import __version__
from ..model.errors import GateError
from . import config as configuration
from .config import Config

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

VERBS = """
  status              the agent's state; exit status 0 only when GPU work may start
  doctor [BUNDLE]     diagnose this node or an evidence bundle, and show the broken link
  access              containers with GPUs: can they open them now, and after a daemon-reload
  timeline [BUNDLE]   the order of events in this boot, or in that of an evidence bundle
  evidence [TO]       save one snapshot as plain files: a folder, .tar, .tar.gz or .tar.zst
  probe               run one NVML probe
  config              every setting in force and its source
  pause               stop all probes and actions; releases a waiting kubelet
  resume              end a pause
  forget              delete the record of the GPUs that earlier boots showed
  image-check         check whether gpu-gate will guard a machine with this image
  run, wait, node     for gpu-gate.service, gpu-gate-wait.service and gpu-gate-node.service
"""
EXIT_STATUS = """exit status: 0 yes; 1 no (not ready, a broken link, a problem); 2 wrong usage;
3 the agent does not answer; 4 not known (doctor, access, image-check). wait always ends with 0.

To release a waiting kubelet now: systemctl stop gpu-gate.target. More: man gpu-gate"""
TAKES_JSON = ("access", "config", "doctor", "image-check", "probe", "status", "timeline")
TAKES_TARGET = ("doctor", "evidence", "timeline", "node")
VERBS_OF_OPTION = {
    "span": ("--for", ("pause",)),
    "why": ("--why", ("pause",)),
    "root": ("--root", ("image-check",)),
    "sealed": ("--sealed", ("image-check",)),
    "check": ("--check", ("config",)),
    "prevent": ("--prevent", ("access",)),
    "npd": ("--npd", ("status",)),
    "verbose": ("--verbose", ("run", "node")),
    "json": ("--json", TAKES_JSON),
    "cluster": ("--cluster", ("doctor",)),
    "deep": ("--deep", ("doctor", "evidence")),
}
"""By attribute of the parsed options: the option, and the verbs that take it."""
LIVE_ONLY = ("cluster", "deep")
"""`doctor` takes these only without a bundle: a bundle does not show what is true now."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; return its exit status."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if not arguments:
        _parser().print_help(sys.stderr)
        return 2
    # The units call these two without options. argparse would cost the agent half a MiB for as
    # long as it runs, and delay the kubelet that waits.
    is_unit = arguments in (["run"], ["wait"])
    # Intermixed: before Python 3.12 an option between verb and folder made the folder an
    # unrecognized argument.
    options = None if is_unit else _parser().parse_intermixed_args(arguments)
    if options is not None and (misuse := _misuse(options)):
        print(f"gpu-gate: {misuse}: gpu-gate --help", file=sys.stderr)
        return 2
    config = configuration.load()
    try:
        if options is None:
            status = _wait(config) if arguments == ["wait"] else _run(config, verbose=False)
        else:
            status = _COMMANDS[options.verb](options, config)
        # Flush here: if the reader has gone away, Python's own flush at exit prints a traceback
        # and ends with status 120.
        sys.stdout.flush()
        return status
    except GateError as exc:
        from .chain import printable

        print(printable(f"gpu-gate: {exc.sentence}"), file=sys.stderr)
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except KeyboardInterrupt:
        return 130


def _parser() -> ArgumentParser:
    import argparse

    parser = argparse.ArgumentParser(
        prog="gpu-gate",
        usage="gpu-gate VERB [BUNDLE|TO] [OPTION...]",
        description="May GPU work start on this node, and if not, which link is broken?\n\nverbs:"
        + VERBS,
        epilog=EXIT_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"gpu-gate {__version__}")
    parser.add_argument(
        "verb",
        metavar="VERB",
        help="one of the above",
        choices=(
            "run",
            "status",
            "doctor",
            "access",
            "evidence",
            "timeline",
            "probe",
            "wait",
            "config",
            "pause",
            "resume",
            "node",
            "forget",
            "image-check",
        ),
    )
    parser.add_argument(
        "target",
        nargs="?",
        default="",
        metavar="BUNDLE|TO",
        help="a folder or a .tar, .tar.gz, .tar.zst",
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON with a version: " + ", ".join(TAKES_JSON)
    )
    parser.add_argument(
        "--deep",
        action="store_true",
        help="doctor, evidence: call CUDA as well, which opens every GPU",
    )
    parser.add_argument(
        "--cluster",
        action="store_true",
        help="doctor: query the metric store and the alert manager of [Cluster] as well",
    )
    parser.add_argument(
        "--check", action="store_true", help="config: print only problems, exit 1 if there is one"
    )
    parser.add_argument(
        "--prevent",
        action="store_true",
        help="access: keep the devices of containers with GPUs across a daemon-reload",
    )
    parser.add_argument("--for", dest="span", metavar="30m", help="pause: end after this time")
    parser.add_argument("--why", metavar="TEXT", help="pause: a reason, shown with the pause")
    parser.add_argument(
        "--root", metavar="DIR", help="image-check: the image's folder, / by default"
    )
    parser.add_argument(
        "--sealed", action="store_true", help="image-check: check a running machine as an image"
    )
    parser.add_argument(
        "--npd", action="store_true", help="status: print the format of node-problem-detector"
    )
    parser.add_argument("--verbose", action="store_true", help="run, node: log more")
    return parser


def _misuse(options: Namespace) -> str:
    """A sentence if the verb does not take an argument or option that it was called with."""
    verb = options.verb
    if options.target and verb not in TAKES_TARGET:
        return f"{verb} takes no argument {options.target!r}"
    for name, (option, verbs) in VERBS_OF_OPTION.items():
        if not getattr(options, name):
            continue
        is_bundle = name in LIVE_ONLY and verb == "doctor" and bool(options.target)
        if verb not in verbs or is_bundle:
            live = " on a live node" if name in LIVE_ONLY else ""
            return f"{option} works only with {', '.join(verbs)}{live}"
    return ""


def _run(config: Config, verbose: bool) -> int:
    from .commands import run

    return run.run(config, verbose)


def _wait(config: Config) -> int:
    from .commands import wait

    return wait.run(config.settings)


def _status(options: Namespace, config: Config) -> int:
    from .commands import status

    if options.npd:
        return status.for_problem_detector(config.settings)
    return status.run(config.settings, options.json)


def _doctor(options: Namespace, config: Config) -> int:
    from .commands import doctor

    return doctor.doctor(
        config.settings, options.target, options.json, options.deep, options.cluster
    )


def _access(options: Namespace, config: Config) -> int:
    if options.prevent:
        from .commands import prevent

        return prevent.run(config.settings)
    from . import access

    return access.run(config.settings, options.json)


def _evidence(options: Namespace, config: Config) -> int:
    from .commands import evidence

    return evidence.evidence(config.settings, options.target, options.deep)


def _timeline(options: Namespace, config: Config) -> int:
    from .commands import timeline

    return timeline.run(config.settings, options.target, options.json)


def _probe(options: Namespace, config: Config) -> int:
    from .commands import probe

    return probe.run(config.settings, options.json)


def _config(options: Namespace, config: Config) -> int:
    from .commands import config as command

    return command.run(config, options.json, options.check)


def _pause(options: Namespace, _config: Config) -> int:
    from .commands import pause

    return pause.run(options.verb, options.span, options.why)


def _node(options: Namespace, config: Config) -> int:
    from .commands import node

    return node.run(config.settings, options.target, options.verbose)


def _image_check(options: Namespace, _config: Config) -> int:
    from .commands import image_check

    return image_check.run(options.root or "/", options.json, options.sealed)


_COMMANDS: dict[str, Callable[[Namespace, Config], int]] = {
    "run": lambda options, config: _run(config, options.verbose),
    "wait": lambda _, config: _wait(config),
    "status": _status,
    "doctor": _doctor,
    "access": _access,
    "evidence": _evidence,
    "timeline": _timeline,
    "probe": _probe,
    "config": _config,
    "pause": _pause,
    "resume": _pause,
    "forget": _pause,
    "node": _node,
    "image-check": _image_check,
}
