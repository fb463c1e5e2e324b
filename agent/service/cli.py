"""`gpu-gate VERB`. Every verb imports only what it needs: `run` and `wait` start without argparse.

Exit status: 0 yes · 1 no (not ready, a broken link, a problem) · 2 wrong usage ·
3 the agent does not answer · 4 unknown (doctor, access, image-check). `wait` always ends with 0.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import __version__
from ..model.errors import GateError
from . import config as configuration

if TYPE_CHECKING:
    import argparse

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
ENDS = """exit status: 0 yes; 1 no (not ready, a broken link, a problem); 2 wrong usage;
3 the agent does not answer; 4 not known (doctor, access, image-check). wait always ends with 0.

To release a waiting kubelet now: systemctl stop gpu-gate.target. More: man gpu-gate"""
TAKES_JSON = ("access", "config", "doctor", "image-check", "probe", "status", "timeline")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; its exit status."""
    words = sys.argv[1:] if argv is None else list(argv)
    if not words:
        _parser().print_help(sys.stderr)
        return 2
    # As the units say it: argparse would stay in the agent, half a MiB, and stand between the wait
    # and the kubelet. Intermixed: before Python 3.12 an option between verb and folder made the
    # folder an unknown word.
    options = None if words in (["run"], ["wait"]) else _parser().parse_intermixed_args(words)
    config = configuration.load()
    try:
        status = _run(options, config) if options else _of_unit(words[0], config)
        # Here: as Python ends, a reader that went away is a complaint and status 120.
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


def _parser() -> argparse.ArgumentParser:
    import argparse

    parser = argparse.ArgumentParser(
        prog="gpu-gate",
        usage="gpu-gate VERB [BUNDLE|TO] [OPTION...]",
        description="May GPU work start on this node, and if not, which link is broken?\n\nverbs:"
        + VERBS,
        epilog=ENDS,
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


def _misused(options: argparse.Namespace) -> str:
    """What was given to a verb that does not take it."""
    if options.target and options.verb not in ("doctor", "evidence", "timeline", "node"):
        return f"{options.verb} takes no {options.target!r}"
    for owners, words, given in (
        (("pause",), "--for and --why", options.span or options.why),
        (("image-check",), "--root and --sealed", options.root or options.sealed),
        (("config",), "--check", options.check),
        (("access",), "--prevent", options.prevent),
        (("status",), "--npd", options.npd),
        (("run", "node"), "--verbose", options.verbose),
        (TAKES_JSON, "--json", options.json),
    ):
        if given and options.verb not in owners:
            return f"{words}: of {', '.join(owners)}, not of {options.verb}"
    if options.cluster and (options.verb != "doctor" or options.target):
        return (
            "--cluster is of doctor, and not of a bundle: what a cluster says now is no "
            "word of last week"
        )
    if options.deep and (
        options.verb not in ("doctor", "evidence") or (options.verb == "doctor" and options.target)
    ):
        return "--deep asks this node's GPUs: it is of doctor and evidence, and not of a bundle"
    return ""


def _run(options: argparse.Namespace, config: configuration.Config) -> int:
    wrong, verb = _misused(options), options.verb
    if wrong:
        print(f"gpu-gate: {wrong}: gpu-gate --help", file=sys.stderr)
        return 2
    if verb == "image-check":
        from .commands import image_check

        return image_check.run(options.root or "/", options.json, options.sealed)
    if verb == "node":
        return _node(config, options.target, options.verbose)
    if verb == "status":
        return _npd(config) if options.npd else _status(config, options.json)
    if verb == "access":
        return _access(config, options.json, options.prevent)
    if verb == "config":
        return _config(config, options.json, options.check)
    if verb in ("pause", "resume", "forget"):
        from .commands import switch

        return switch.run(verb, options.span, options.why)
    if verb in ("run", "wait"):
        return _of_unit(verb, config, options.verbose)
    return _one_look(options, config)


def _one_look(options: argparse.Namespace, config: configuration.Config) -> int:
    """The verbs that look once by themselves, agent or not."""
    verb = options.verb
    if verb == "evidence":
        from .commands import evidence

        return evidence.evidence(config.settings, options.target, options.deep)
    if verb == "timeline":
        from .commands import timeline

        return timeline.run(config.settings, options.target, options.json)
    from .commands import doctor

    if verb == "doctor":
        return doctor.doctor(
            config.settings, options.target, options.json, options.deep, options.cluster
        )
    return doctor.probe(config.settings, options.json)


def _access(config: configuration.Config, as_json: bool, prevents: bool) -> int:
    if prevents:
        from .commands import prevent

        return prevent.run(config.settings)
    from . import access

    return access.run(config.settings, as_json)


def _of_unit(verb: str, config: configuration.Config, verbose: bool = False) -> int:
    if verb == "wait":
        from .commands import wait

        return wait.run(config.settings)
    return _daemon(config, verbose)


def _daemon(config: configuration.Config, verbose: bool) -> int:
    from .boot import first_probe, keep_quiet

    if keep_quiet(config.settings):
        config = configuration.load()  # a reload may have been asked for meanwhile
    first = first_probe(config.settings)
    # asyncio takes OpenSSL along where it is there, 6 MiB, and lives without: the agent speaks no
    # TLS, and Python has hashes of its own.
    for unused in ("ssl", "_hashlib"):
        sys.modules.setdefault(unused, None)  # type: ignore[arg-type]
    import asyncio

    from . import log
    from .daemon import Daemon

    log.set_up(verbose)

    async def run() -> None:
        await Daemon(config, first).run()

    asyncio.run(run())
    return 0


def _node(config: configuration.Config, boot_id: str, verbose: bool) -> int:
    """`boot_id` comes from systemd (%b): in a /proc of its own, a container node's unit sees its
    host's."""
    try:
        from ..barrier.barrier import Agent, run
    except ModuleNotFoundError as exc:
        raise GateError(
            f"this wants the Kubernetes client library ({exc}): apt-get install gpu-gate-node"
        ) from exc
    from uuid import UUID

    from . import ask, log

    try:
        boot_id = str(UUID(boot_id))
    except ValueError as exc:
        raise GateError(
            "gpu-gate node BOOT_ID is run by gpu-gate-node.service: systemctl start it"
        ) from exc
    log.set_up(verbose, "gpu-gate-node")
    settings = config.settings
    return run(
        settings,
        Agent(
            lambda: ask.get("/readyz", listen=settings.listen),
            lambda: ask.status(listen=settings.listen),
            ask.NoAgent,
        ),
        boot_id,
    )


NPD_CHARS = 80
"""max_output_length of node-problem-detector's own examples; what is longer is cut there."""


def _npd(config: configuration.Config) -> int:
    """0 ready, 1 a problem, 2 not known: a custom plugin of node-problem-detector."""
    from ..barrier.readiness import from_status, no_answer
    from . import ask

    try:
        word = from_status(ask.status(listen=config.settings.listen))
    except ask.NoAgent as exc:
        word = no_answer(str(exc))
    print(word.line[:NPD_CHARS])
    return {True: 0, False: 1, None: 2}[word.ready]


def _status(config: configuration.Config, as_json: bool) -> int:
    from . import ask
    from .chain import chain, printable, verdict_line, wants_colour

    try:
        status = ask.status(listen=config.settings.listen)
    except ask.NoAgent as exc:
        print(f"gpu-gate: {exc}", file=sys.stderr)
        return 3
    gate = status["gate"]
    if as_json:
        print(json.dumps(status, indent=1))
    else:
        left = gate["deadline_in_s"]
        released = gate["released_why"] or (
            f"no, {left:.0f} s to the deadline" if left is not None else "no"
        )
        print(verdict_line(gate))
        print(printable(f"kubelet released: {released}") + "\n")
        print("\n".join(chain(status["findings"], wants_colour(), status.get("first_broken"))))
        for sentence in status["trouble"] + status["config_problems"]:
            print(printable(f"note: {sentence}"))
    return 0 if gate["ready"] else 1


def _config(config: configuration.Config, as_json: bool, check: bool) -> int:
    rows = configuration.rows(config)
    if as_json:
        print(
            json.dumps(
                {
                    "version": 1,
                    "settings": [
                        {"section": s, "key": k, "value": v, "from": o} for s, k, v, o in rows
                    ],
                    "problems": [
                        {"where": p.where, "sentence": p.sentence, "error": p.is_error}
                        for p in config.problems
                    ],
                },
                indent=1,
            )
        )
    elif not check:
        section = ""
        for row_section, key, value, origin in rows:
            if row_section != section:
                print(f"{chr(10) if section else ''}[{row_section}]")
                section = row_section
            print(f"{key}={value}".ljust(58) + f" # {origin}")
    for problem in config.problems:
        print(f"{'error' if problem.is_error else 'warning'}: {problem}", file=sys.stderr)
    return 1 if check and config.problems else 0
