"""The configuration: a typo is named with file and line, and never holds a fleet."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from agent.model.settings import Settings
from agent.service import config
from agent.service.cycle_log import log_config
from agent.service.setting_values import parse_span

REPO = Path(__file__).resolve().parents[2]
CONF = "etc/gpu-gate/gpu-gate.conf"
KEYS = {(f.metadata["section"], f.metadata["key"]): f.name for f in fields(Settings)}
DEFAULTS = {
    f"{section}.{key}": config.written(getattr(Settings(), name))
    for (section, key), name in KEYS.items()
}
UUID = "GPU-aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"


def loaded(
    root: Path, text: str | bytes = "", last_good: Settings | None = None, **dropins: str
) -> config.Config:
    path = root / CONF
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    (root / f"{CONF}.d").mkdir(exist_ok=True)
    for name, dropin in dropins.items():
        (root / f"{CONF}.d" / f"{name}.conf").write_text(dropin)
    return config.load(str(root), last_good)


def line(section: str, key: str, value: str) -> str:
    return f"[{section}]\n{key}={value}\n"


# key, what is written, what is in force
GOOD: list[tuple[str, str, Any]] = [
    ("Gate.ExpectedGPUs", "8", ("8",)),
    ("Gate.ExpectedGPUs", "0", ("0",)),
    ("Gate.ExpectedGPUs", f"{UUID}, {UUID.replace('a', 'b')}", (UUID, UUID.replace("a", "b"))),
    ("Gate.ExcludeGPUs", "0000:07:00.0 00000000:0F:00.0", ("0000:07:00.0", "0000:0f:00.0")),
    ("Gate.StableProbes", "1", 1),
    ("Gate.StableIntervalSec", "500ms", 0.5),
    ("Gate.DeadlineSec", "1min 30s", 90.0),
    ("Gate.DeadlineSec", "240", 240.0),
    ("Gate.OnDeadline", "hold", "hold"),
    ("Gate.HoldSec", "10min", 600.0),
    ("Gate.ControlPlaneDeadlineSec", "1.5 minutes", 90.0),
    ("Gate.Fabric", "require", "require"),
    ("Gate.FabricWithinSec", "2min", 120.0),
    (
        "Gate.PauseWhile",
        "nvidia-mig-manager.service, reset.service",
        ("nvidia-mig-manager.service", "reset.service"),
    ),
    ("Probe.TimeoutSec", "45 sec", 45.0),
    ("Probe.IntervalSec", "1h", 3600.0),
    ("Probe.IntervalSec", "1 day", 86400.0),
    ("Probe.DriverRoot", "/run/nvidia/driver/", "/run/nvidia/driver"),
    ("Driver.Load", "auto", "auto"),
    ("Driver.MakeNodes", "No", False),
    ("Driver.MakeNodes", "on", True),
    (
        "Kubelet.Unit",
        "snap.microk8s.daemon-kubelite.service",
        "snap.microk8s.daemon-kubelite.service",
    ),
    ("Kubelet.Unit", "none", "none"),
    (
        "Kubelet.Resources",
        "nvidia.com/gpu, nvidia.com/mig-*",
        ("nvidia.com/gpu", "nvidia.com/mig-*"),
    ),
    ("Kubelet.PodResourcesSocket", "/data/kubelet.sock", "/data/kubelet.sock"),
    ("Kubelet.DevicePluginsDir", "/", "/"),
    (
        "Plugin.RuntimeSocket",
        "/run/k3s/containerd/containerd.sock",
        "/run/k3s/containerd/containerd.sock",
    ),
    ("Plugin.Containers", "gpu-plugin, *-dp", ("gpu-plugin", "*-dp")),
    ("Plugin.Images", "*/nvidia/*:v0.9*", ("*/nvidia/*:v0.9*",)),
    ("Plugin.Unit", "nvidia-device-plugin.service", "nvidia-device-plugin.service"),
    ("Plugin.Unit", "none", "none"),
    ("Plugin.Launch", "none", "none"),
    ("Plugin.LaunchManifest", "/etc/plugin.yaml", "/etc/plugin.yaml"),
    ("Plugin.ManifestDir", "/etc/kubelet.d/", "/etc/kubelet.d"),
    ("Plugin.Repair", "report", "report"),
    ("Plugin.RepairPartial", "yes", True),
    ("Plugin.RegisterWithinSec", "1min", 60.0),
    ("Plugin.VerifyWithinSec", "90s", 90.0),
    ("Plugin.RepairsPerHour", "1", 1),
    ("Plugin.RepairsPerBoot", "20", 20),
    ("Http.Listen", "[::1]:80", "[::1]:80"),
    ("Http.Listen", "node-1.example.:80", "node-1.example.:80"),
    ("Access.Prevent", "report", "report"),
    ("Access.Heal", "no", False),
    ("Access.StrictAccess", "yes", True),
    ("Node.Kubeconfig", "/etc/kubernetes/node.conf", "/etc/kubernetes/node.conf"),
    ("Node.Name", "gpu-7.example.com", "gpu-7.example.com"),
    ("Node.Condition", "example.com/GpuReady", "example.com/GpuReady"),
    ("Node.Label", "", ""),
    ("Node.StartupTaint", "gpu-gate.io/not-ready", "gpu-gate.io/not-ready"),
    ("Node.ReadyForSec", "0", 0.0),
    ("Node.WithdrawAfterSec", "1min", 60.0),
    ("Cluster.Prometheus", "http://prometheus:9090/p", "http://prometheus:9090/p"),
    ("Cluster.Alertmanager", "https://[::1]:9093", "https://[::1]:9093"),
    ("Cluster.N9e", "http://n9e", "http://n9e"),
    ("Cluster.N9eTokenFile", "/etc/gpu-gate/n9e.token", "/etc/gpu-gate/n9e.token"),
    ("Cluster.Alerts", "Gpu*", ("Gpu*",)),
    ("Agent.HeartbeatSec", "45s", 45.0),
    ("Agent.RevalidateSec", "1000000us", 1.0),
]


@pytest.mark.parametrize(("key", "value", "wanted"), GOOD)
def test_a_value_in_force(tmp_path: Path, key: str, value: str, wanted: Any) -> None:
    section, _, word = key.partition(".")
    found = loaded(tmp_path, line(section, word, value))
    assert found.problems == ()
    name = KEYS[section, word]
    assert getattr(found.settings, name) == wanted
    assert found.origins == {name: f"/{CONF}:2"}


def test_every_key_is_tested() -> None:
    assert {key for key, _, _ in GOOD} == set(DEFAULTS)


# key, what is written, a part of what would be right
BAD: list[tuple[str, str, str]] = [
    ("Gate.ExpectedGPUs", "eight", "a number of GPUs"),
    ("Gate.ExpectedGPUs", "129", "up to 128"),
    ("Gate.ExpectedGPUs", "-1", "a number"),
    ("Gate.ExpectedGPUs", "²", ""),
    ("Gate.ExpectedGPUs", "9" * 5000, ""),
    ("Gate.ExpectedGPUs", f"8 {UUID}", "or UUIDs"),
    ("Gate.ExcludeGPUs", "07:00.0", "0000:07:00.0"),
    ("Gate.StableProbes", "0", "1 to 20"),
    ("Gate.StableProbes", "2.5", "whole number"),
    ("Gate.StableIntervalSec", "1ms", "between 0.1s and 60s"),
    ("Gate.DeadlineSec", "3 fortnights", "a time span looks like"),
    ("Gate.DeadlineSec", "31min", "between 1s and 1800s"),
    ("Gate.DeadlineSec", "infinity", "a time span looks like"),
    ("Gate.DeadlineSec", "9" * 400, "between"),
    ("Gate.DeadlineSec", "nan", "a time span"),
    ("Gate.DeadlineSec", "-5s", "a time span"),
    ("Gate.DeadlineSec", "1e3", "a time span"),
    ("Gate.OnDeadline", "close", "open or hold"),
    ("Gate.HoldSec", "1h", "1800s"),
    ("Gate.ControlPlaneDeadlineSec", "0", "between"),
    ("Gate.Fabric", "yes", "prefer or require or ignore"),
    ("Gate.FabricWithinSec", "0", "between 1s"),
    ("Gate.PauseWhile", "nvidia-mig-manager", "a unit's full name"),
    ("Probe.TimeoutSec", "s", "a time span"),
    ("Probe.IntervalSec", "1s", "between 10s"),
    ("Probe.DriverRoot", "run/nvidia", "an absolute path"),
    ("Probe.DriverRoot", "/a\0b", "an absolute path"),
    ("Driver.Load", "yes", "no or auto"),
    ("Driver.MakeNodes", "maybe", "yes or no"),
    ("Cluster.Prometheus", "prometheus:9090", "an address such as http://"),
    ("Cluster.N9e", "http://user:secret@n9e", "without user and password"),
    ("Cluster.Alertmanager", "file:///etc/shadow", "an address"),
    ("Kubelet.Unit", "kubelet", "a unit's full name"),
    ("Kubelet.Unit", "a b.service", "a unit's full name"),
    ("Kubelet.PodResourcesSocket", "unix:///x", "an absolute path"),
    ("Kubelet.DevicePluginsDir", "x", "an absolute path"),
    ("Plugin.RuntimeSocket", "unix:///run/containerd/containerd.sock", "an absolute path"),
    ("Plugin.Unit", "plugin", "a unit's full name"),
    ("Plugin.Unit", "a.service b.service", "a unit's full name"),
    ("Plugin.Launch", "yes", "none or unit or manifest"),
    ("Plugin.LaunchManifest", "plugin.yaml", "an absolute path"),
    ("Plugin.ManifestDir", "manifests", "an absolute path"),
    ("Plugin.Repair", "no", "yes or report"),
    ("Plugin.RepairPartial", "sometimes", "yes or no"),
    ("Plugin.RegisterWithinSec", "0.5s", "between 1s and 3600s"),
    ("Plugin.VerifyWithinSec", "4s", "between 5s and 3600s"),
    ("Plugin.RepairsPerHour", "0", "1 to 20"),
    ("Plugin.RepairsPerBoot", "21", "1 to 20"),
    ("Node.Kubeconfig", "~/.kube/config", "an absolute path"),
    ("Node.Name", "GPU_7", "kubectl get nodes"),
    ("Node.Label", "gpu-gate.io/ready=true", "without value and effect"),
    ("Node.StartupTaint", "a/b:NoSchedule", "without value and effect"),
    ("Http.Listen", "9477", "address:port"),
    ("Http.Listen", "127.0.0.1:0", "address:port"),
    ("Http.Listen", "node..example:9477", "address:port"),
    ("Http.Listen", f"{'a' * 64}:9477", "address:port"),
    ("Http.Listen", "127.0.0.1:65536", "address:port"),
    ("Http.Listen", "::1:80", "address:port"),
    ("Agent.HeartbeatSec", "0.1s", "between"),
    ("Agent.RevalidateSec", "2h", "between"),
]


@pytest.mark.parametrize(("key", "value", "says"), BAD)
def test_a_bad_value_is_reported_and_the_default_stays(
    tmp_path: Path, key: str, value: str, says: str
) -> None:
    section, _, word = key.partition(".")
    found = loaded(tmp_path, line(section, word, value))
    (problem,) = found.problems
    assert problem.is_error
    assert problem.where == f"/{CONF}:2"
    assert problem.sentence.startswith(f"{word}=") and says in problem.sentence
    assert len(problem.sentence) < 250
    assert found.settings == Settings()


@pytest.mark.parametrize(
    ("text", "where", "says", "is_error"),
    [
        (
            "[Gate]\nDeadlineSecs=5\n",
            2,
            "unknown key DeadlineSecs= in [Gate]; it is not in force",
            False,
        ),
        ("[Gate]\nTimeoutSec=5s\n", 2, "TimeoutSec= belongs into [Probe], not [Gate]", False),
        (
            "[gate]\n",
            1,
            "unknown section [gate]; known: [Gate], [Probe], [Driver], [Kubelet], [Plugin], "
            "[Access], "
            "[Http], [Node], [Cluster], [Agent]",
            False,
        ),
        ("DeadlineSec=5s\n", 1, "belongs into [Gate]", False),
        ("[Gate]\n\n# ok\n; ok\nhello\n", 5, "'hello' is not Key=Value", True),
        ("[Gate\n", 1, "is not Key=Value", True),
        ("[Gate]\n=5\n", 2, "unknown key =", False),
    ],
)
def test_a_line_with_unknown_content(
    tmp_path: Path, text: str, where: int, says: str, is_error: bool
) -> None:
    found = loaded(tmp_path, text)
    assert [(p.where, p.is_error) for p in found.problems] == [(f"/{CONF}:{where}", is_error)]
    assert says in found.problems[0].sentence
    assert str(found.problems[0]).startswith(f"/{CONF}:{where}: ")
    assert found.settings == Settings()


def test_a_typo_affects_only_its_own_line(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        "[Gate]\nDeadlineSec=oops\nStableProbes=5\nOnDedline=hold\n[Probe]\nTimeoutSec=9s\n",
    )
    assert (found.settings.stable_probes, found.settings.probe_timeout_s) == (5, 9.0)
    assert len(found.problems) == 2


def test_drop_ins_follow_in_the_order_of_their_names_and_the_last_value_holds(
    tmp_path: Path,
) -> None:
    found = loaded(
        tmp_path,
        line("Gate", "StableProbes", "2"),
        b=line("Gate", "StableProbes", "4"),
        a=line("Gate", "StableProbes", "3"),
    )
    assert found.settings.stable_probes == 4
    assert found.origins["stable_probes"] == f"/{CONF}.d/b.conf:2"


def test_only_conf_files_are_drop_ins(tmp_path: Path) -> None:
    loaded(tmp_path, "")
    (tmp_path / f"{CONF}.d/a.conf.dpkg-old").write_text("[Gate]\nStableProbes=9\n")
    (tmp_path / f"{CONF}.d/folder.conf").mkdir()
    assert config.load(str(tmp_path)) == config.Config(Settings())


def test_an_empty_value_resets(tmp_path: Path) -> None:
    found = loaded(tmp_path, line("Gate", "ExpectedGPUs", "8"), a=line("Gate", "ExpectedGPUs", ""))
    assert found.settings.expected_gpus == ()
    assert found.problems == ()


def test_an_empty_listen_listens_nowhere(tmp_path: Path) -> None:
    """gpu-gate.conf(5): "Empty: none"."""
    assert loaded(tmp_path, line("Http", "Listen", "")).settings.listen == ""


def test_a_bad_value_later_does_not_bring_an_earlier_one_back(tmp_path: Path) -> None:
    found = loaded(
        tmp_path, line("Gate", "StableProbes", "2"), a=line("Gate", "StableProbes", "many")
    )
    assert found.settings.stable_probes == Settings().stable_probes


def test_a_good_value_later_makes_up_for_a_bad_one(tmp_path: Path) -> None:
    found = loaded(
        tmp_path, line("Gate", "StableProbes", "many"), a=line("Gate", "StableProbes", "2")
    )
    assert found.settings.stable_probes == 2
    assert len(found.problems) == 1


@pytest.mark.parametrize(
    ("text", "name", "wanted", "says"),
    [
        (
            "[Gate]\nDeadlineSec=10min\nHoldSec=1min\n",
            "deadline_s",
            60.0,
            "is longer than HoldSec=60s; 60s is in force",
        ),
        ("[Gate]\nHoldSec=1min\n", "deadline_s", 60.0, "is longer than HoldSec"),
        (
            "[Agent]\nHeartbeatSec=10min\n",
            "heartbeat_s",
            45.0,
            "would starve the watchdog (90 s); 45s is in force",
        ),
    ],
)
def test_contradicting_settings_use_the_shorter_delay(
    tmp_path: Path, text: str, name: str, wanted: float, says: str
) -> None:
    found = loaded(tmp_path, text)
    assert getattr(found.settings, name) == wanted
    (problem,) = found.problems
    assert says in problem.sentence and problem.is_error and problem.where.startswith(f"/{CONF}:")


def test_at_a_reload_the_last_valid_value_stays(tmp_path: Path) -> None:
    good = loaded(tmp_path, "[Gate]\nStableProbes=5\nDeadlineSec=60s\n").settings
    found = loaded(tmp_path, "[Gate]\nStableProbes=lots\n", last_good=good)
    assert found.settings.stable_probes == 5, "the typo does not bring the default back"
    assert found.settings.deadline_s == 180.0, "a line that is gone is gone"


def test_at_a_reload_a_file_that_cannot_be_read_changes_nothing(tmp_path: Path) -> None:
    good = loaded(tmp_path, "[Gate]\nDeadlineSec=60s\n").settings
    found = unreadable(tmp_path, good)
    assert found.settings.deadline_s == 60.0


def unreadable(root: Path, last_good: Settings | None = None) -> config.Config:
    """The file is there and its first page cannot be read, for root neither."""
    (root / CONF).unlink()
    (root / CONF).symlink_to("/proc/self/mem")
    return config.load(str(root), last_good)


def test_an_unreadable_file_is_a_problem(tmp_path: Path) -> None:
    loaded(tmp_path, "", a=line("Gate", "StableProbes", "2"))
    found = unreadable(tmp_path)
    (problem,) = found.problems
    assert (problem.where, problem.is_error) == (f"/{CONF}", True)
    assert "could not be read (Input/output error)" in problem.sentence
    assert found.settings.stable_probes == 2


def test_a_file_that_cannot_be_accessed_is_a_problem_and_changes_nothing(tmp_path: Path) -> None:
    good = loaded(tmp_path, "[Gate]\nDeadlineSec=60s\n").settings
    (tmp_path / CONF).unlink()
    (tmp_path / CONF).symlink_to("gpu-gate.conf")
    found = config.load(str(tmp_path), good)
    (problem,) = found.problems
    assert (
        problem.where == f"/{CONF}"
        and "could not be read (Too many levels of symbolic links)" in problem.sentence
    )
    assert found.settings.deadline_s == 60.0


@pytest.mark.parametrize(
    "junk",
    [
        b"\0" * 5000,
        bytes(range(256)) * 20,
        b"\xff\xfe[\0G\0",
        b"=" * 9999,
        b"[" * 9999,
        b"\r\n\r\n",
        b"[Gate]\nDeadlineSec=\xff\xff\n",
    ],
)
def test_malformed_settings_are_only_problems(tmp_path: Path, junk: bytes) -> None:
    found = loaded(tmp_path, junk)
    assert found.settings == Settings()
    assert all(len(str(p)) < 10_500 for p in found.problems)


def test_ten_megabytes(tmp_path: Path) -> None:
    found = loaded(tmp_path, b"[Gate]\nStableProbes=5\n" + b"# padding\n" * (1 << 20))
    assert found.settings.stable_probes == 5


def test_problems_do_not_flood_the_log(tmp_path: Path) -> None:
    assert len(loaded(tmp_path, b"x\n" * (1 << 14)).problems) <= 1000


def test_a_problem_is_logged_once_and_counted_at_each_reload(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A hundred lines at each of a hundred reloads would cost the journal what else it holds."""
    caplog.set_level("INFO")
    first = loaded(tmp_path, "[Gate]\nDeadlineSec=soon\n")
    log_config(first)
    again = loaded(tmp_path, "[Gate]\nDeadlineSec=soon\nStableProbes=many\n")
    log_config(again, first.problems)
    assert caplog.text.count("DeadlineSec=soon") == caplog.text.count("StableProbes=many") == 1
    assert caplog.messages[-1].endswith("; 2 problems: gpu-gate config --check")


def test_unread_lines_are_reported(tmp_path: Path) -> None:
    found = loaded(tmp_path, b"# padding\n" * (1 << 17) + b"[Gate]\nStableProbes=5\n")
    assert found.settings.stable_probes == 5 or found.problems


def test_no_configuration_at_all(tmp_path: Path) -> None:
    assert config.load(str(tmp_path)) == config.Config(Settings())


def test_rows_show_every_setting_and_where_it_came_from(tmp_path: Path) -> None:
    rows = config.rows(loaded(tmp_path, line("Driver", "MakeNodes", "no")))
    assert [(section, key) for section, key, _, _ in rows] == list(KEYS)
    assert ("Driver", "MakeNodes", "no", f"/{CONF}:2") in rows
    assert ("Gate", "DeadlineSec", "180s", "default") in rows


def test_a_rejected_line_is_not_where_the_value_came_from(tmp_path: Path) -> None:
    found = loaded(tmp_path, line("Gate", "DeadlineSec", "soon"))
    assert ("Gate", "DeadlineSec", "180s", "default") in config.rows(found)


def test_shown_settings_can_be_read_back(tmp_path: Path) -> None:
    """`gpu-gate config` prints a file with the same settings."""
    shown = loaded(
        tmp_path, line("Gate", "ExcludeGPUs", "0000:07:00.0") + line("Driver", "MakeNodes", "no")
    )
    text = "".join(line(section, key, value) for section, key, value, _ in config.rows(shown))
    assert loaded(tmp_path, text).settings == shown.settings


def of_conf_file(text: str) -> dict[str, str]:
    found, section = {}, ""
    for written in text.splitlines():
        if written.startswith("["):
            section = written.strip("[]")
        elif match := re.match(r"#(\w+)=(.*)", written):
            found[f"{section}.{match[1]}"] = match[2]
    return found


def of_manual(text: str) -> dict[str, str]:
    found, section = {}, ""
    known = {f.metadata["section"].upper(): f.metadata["section"] for f in fields(Settings)}
    tagged = text.replace("\\-", "-").replace("\\", "").splitlines()
    for before, written in zip(["", *tagged], tagged, strict=False):
        if match := re.match(r"\.SH \[(\w+)\]", written):
            section = known[match[1]]
        elif before == ".TP" and (match := re.match(r"\.I (\w+)=(.*)", written)):
            found[f"{section}.{match[1]}"] = match[2]
    return found


def spans(defaults: dict[str, str]) -> dict[str, Any]:
    """With spans as seconds: 30min and 1800s are the same."""
    return {
        key: parse_span(value) if key.endswith("Sec") else value for key, value in defaults.items()
    }


@pytest.mark.parametrize(
    ("path", "reader"),
    [("packaging/deb/conf/gpu-gate.conf", of_conf_file), ("docs/man/gpu-gate.conf.5", of_manual)],
)
def test_the_file_and_the_manual_agree(path: str, reader: Any) -> None:
    assert spans(reader((REPO / path).read_text())) == spans(DEFAULTS)


def test_the_packaged_file_changes_nothing(tmp_path: Path) -> None:
    text = (REPO / "packaging/deb/conf/gpu-gate.conf").read_text()
    assert loaded(tmp_path, text) == config.Config(Settings())
    uncommented = re.sub(r"^#(?=\w)", "", text, flags=re.M)
    assert loaded(tmp_path, uncommented).settings == Settings()
    assert not loaded(tmp_path, uncommented).problems


@pytest.mark.parametrize("field", fields(Settings), ids=lambda f: f.name)
def test_every_setting_has_a_description(field: Any) -> None:
    assert field.metadata["why"] and field.metadata["section"] and field.metadata["key"]
    assert (
        field.metadata["key"].endswith("Sec")
        is field.name.endswith("_s")
        is isinstance(field.default, float)
    )


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("Launch=unit\n", "nothing without [Plugin] Unit="),
        ("Launch=manifest\n", "LaunchManifest=/etc/gpu-gate/plugin.yaml is not a file"),
        (
            "Launch=manifest\nLaunchManifest=/pod\nManifestDir=/etc/static.d\n",
            "echo 'r! /etc/static.d/gpu-gate-plugin.yaml'",
        ),
    ],
)
def test_missing_parts_of_a_launch_are_reported(tmp_path: Path, lines: str, says: str) -> None:
    (tmp_path / "pod").write_text("kind: Pod\n")
    (tmp_path / "etc/tmpfiles.d").mkdir(parents=True)
    (tmp_path / "etc/tmpfiles.d/a.conf").write_text(
        "# r! /etc/static.d/gpu-gate-plugin.yaml\nr! /elsewhere\n"
    )
    (problem,) = loaded(tmp_path, f"[Plugin]\n{lines}").problems
    assert problem.is_error and problem.where == f"/{CONF}:2" and says in problem.sentence
    (tmp_path / "etc/tmpfiles.d/a.conf").write_text("r! /etc/static.d/gpu-gate-plugin.yaml\n")
    (tmp_path / "etc/gpu-gate/plugin.yaml").write_text("kind: Pod\n")
    assert len(loaded(tmp_path, f"[Plugin]\n{lines}Unit=dp.service\n").problems) == 0


def test_an_impossible_manifest_path_is_a_problem_and_not_a_crash(tmp_path: Path) -> None:
    (problem,) = loaded(
        tmp_path, f"[Plugin]\nLaunch=manifest\nLaunchManifest=/{'a' * 300}\n"
    ).problems
    assert problem.is_error and "is not a file" in problem.sentence
