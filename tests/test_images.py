"""The wrappers in packaging/images are thin and use only the script's options. A check whose linter
is missing is skipped by name; tests/test_chroot.py runs the script itself."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

IMAGES = Path(__file__).resolve().parents[1] / "packaging" / "images"
WRAPPERS = (
    "mkosi/mkosi.postinst.chroot",
    "packer/gpu-gate.pkr.hcl",
    "ansible/roles/gpu_gate/tasks/main.yml",
    "cloud-init/user-data.yaml",
    "kind/Dockerfile",
)
MOST_LINES = 50


def test_every_wrapper_is_known_and_thin() -> None:
    there = {str(path.relative_to(IMAGES)) for path in IMAGES.rglob("*") if path.is_file()}
    assert there == {"install", "mkosi/mkosi.conf", *WRAPPERS}
    assert all(len((IMAGES / name).read_text().splitlines()) <= MOST_LINES for name in WRAPPERS)


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_runs_the_script_with_options_that_it_has(name: str) -> None:
    options = set(re.findall(r"^        (--[a-z-]+)", (IMAGES / "install").read_text(), re.M)) | {
        "--expected-gpus"
    }
    text = re.sub(r"^\s*#.*$", "", (IMAGES / name).read_text(), flags=re.M)
    calls = re.findall(r"(?:/|'/)install\b(?!/)(.*)", text)
    assert calls
    assert {word for call in calls for word in re.findall(r" (--[a-z-]+)", call)} <= options


def test_ansible_role_is_a_list_of_named_tasks_with_one_module_each() -> None:
    tasks = yaml.safe_load((IMAGES / "ansible/roles/gpu_gate/tasks/main.yml").read_text())
    for task in tasks:
        assert (
            task["name"] and len([key for key in task if key.startswith("ansible.builtin.")]) == 1
        )


def test_user_data_does_not_block_a_boot_that_may_wait_for_it() -> None:
    text = (IMAGES / "cloud-init/user-data.yaml").read_text()
    assert text.startswith("#cloud-config\n")
    data = yaml.safe_load(text)
    assert set(data) == {"write_files", "runcmd"}, "bootcmd runs before basic.target"
    starts = re.findall(
        r"systemctl [a-z]+ \S+", " ".join(word for words in data["runcmd"] for word in words)
    )
    assert starts and all(words == "systemctl start --no-block" for words in starts)


def test_mkosi_lists_every_dependency_of_the_deb() -> None:
    control = (IMAGES.parent / "deb" / "control").read_text().partition("Package: gpu-gate\n")[2]
    depends = re.findall(r"^ ([a-z0-9-]+),$", control.partition("Description:")[0], re.M)
    named = re.findall(r"^    (\S+)$", (IMAGES / "mkosi/mkosi.conf").read_text(), re.M)
    assert set(depends) <= set(named)


@pytest.mark.parametrize(
    ("name", "argv"),
    [
        ("packer", ["fmt", "-check", "packer/gpu-gate.pkr.hcl"]),
        ("cloud-init", ["schema", "--config-file", "cloud-init/user-data.yaml"]),
        ("ansible-lint", ["--offline", "ansible/roles/gpu_gate"]),
        ("hadolint", ["kind/Dockerfile"]),
    ],
)
def test_its_own_linter_reports_nothing(name: str, argv: list[str]) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"NOT CHECKED: {argv[-1]}, because {name} is not installed")
    done = subprocess.run([name, *argv], cwd=IMAGES, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
