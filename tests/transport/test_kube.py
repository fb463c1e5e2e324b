"""The API server's client against a stand-in on the real wire: TLS, tokens, patches, the watch, and
what may fail."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.model.errors import ApiError
from agent.transport.kube_api import ApiServer, _timeout

from .kube_peers import Api, certificates, kubeconfig

NODE: dict[str, Any] = {
    "metadata": {"name": "n", "labels": {"a": "b"}},
    "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]},
    "status": {
        "conditions": [{"type": "Ready", "status": "True"}],
        "capacity": {"nvidia.com/gpu": "8"},
    },
}


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pki")
    certificates(folder)
    return folder


@pytest.fixture
def api(pki: Path) -> Iterator[Api]:
    server = Api(pki, NODE)
    yield server
    server.close()


@pytest.fixture
def client(api: Api, pki: Path, tmp_path: Path) -> Iterator[ApiServer]:
    found = ApiServer(str(kubeconfig(tmp_path / "kubeconfig", api.port, pki / "ca.pem")))
    yield found
    found.close()


def trouble(call: Any) -> ApiError:
    with pytest.raises(ApiError) as found:
        call()
    return found.value


def test_a_node_is_read_and_patched_by_the_type_of_the_patch(api: Api, client: ApiServer) -> None:
    assert client.node("n")["metadata"]["labels"] == {"a": "b"}
    after = client.patch(
        "n", {"metadata": {"labels": {"a": None, "c": "d"}}, "spec": {"taints": None}}
    )
    assert (after["metadata"]["labels"], after["spec"]) == ({"c": "d"}, {})
    one = {"type": "GpuReady", "status": "False", "reason": "X"}
    after = client.patch("n", {"status": {"conditions": [one]}}, status=True)
    assert after["status"]["conditions"] == [{"type": "Ready", "status": "True"}, one], (
        "merged by type"
    )
    assert len(api.writes) == 2


def test_refusals_carry_their_code_and_how_long_to_wait(api: Api, client: ApiServer) -> None:
    stale = {"metadata": {"resourceVersion": "1"}, "spec": {"taints": []}}
    assert trouble(lambda: client.patch("n", stale)).code == 409
    api.faults.append(("GET", 429, {"Retry-After": "7"}))
    found = trouble(lambda: client.node("n"))
    assert (found.code, found.retry_after_s) == (429, 7.0)
    assert len([r for r in api.requests if r.startswith("GET")]) == 1, (
        "not asked again behind our back"
    )
    assert trouble(lambda: client.node("other")).code == 404
    api.faults.append(("GET", 503, {}))
    assert "503" in str(trouble(lambda: client.node("n")))
    assert client.node("n")["metadata"]["name"] == "n"


def test_a_connection_that_is_cut_is_no_answer(api: Api, client: ApiServer) -> None:
    api.faults.append(("GET", 0, {}))
    found = trouble(lambda: client.node("n"))
    assert found.code == 0 and "does not answer" in str(found)
    assert client.node("n")


def test_an_expired_token_is_read_again_from_the_file(api: Api, pki: Path, tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "kubeconfig", api.port, pki / "ca.pem", token="old")
    client = ApiServer(str(path))
    assert trouble(lambda: client.node("n")).code == 401
    kubeconfig(path, api.port, pki / "ca.pem")
    assert client.node("n")
    client.close()


def test_a_token_that_is_changed_while_it_still_works_is_taken(
    api: Api, client: ApiServer, pki: Path, tmp_path: Path
) -> None:
    assert client.node("n")
    api.token = "new"
    new = kubeconfig(tmp_path / "new", api.port, pki / "ca.pem", token="new")
    new.rename(tmp_path / "kubeconfig")
    assert client.node("n")


def test_another_ca_is_reported(api: Api, tmp_path: Path) -> None:
    certificates(tmp_path / "others")
    path = kubeconfig(tmp_path / "kubeconfig", api.port, tmp_path / "others/ca.pem")
    found = str(trouble(lambda: ApiServer(str(path)).node("n")))
    assert found.startswith("TLS with https://127.0.0.1:") and str(path) in found


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "a: [",
        "- 1",
        "{}",
        "{current-context: x}",
        "\x00\xff",
        "contexts: [{name: c, context: {cluster: k, user: u}}]\ncurrent-context: c\n",
    ],
)
def test_a_kubeconfig_of_any_kind_is_a_sentence(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    if text is not None:
        path.write_text(text, encoding="latin-1")
    assert str(path) in str(trouble(lambda: ApiServer(str(path)).node("n")))


def test_a_missing_server(tmp_path: Path, pki: Path) -> None:
    path = kubeconfig(tmp_path / "kubeconfig", 1, pki / "ca.pem")
    assert "https://127.0.0.1:1 does not answer" in str(
        trouble(lambda: ApiServer(str(path)).node("n"))
    )


def test_a_watch_yields_changes_and_bookmarks(api: Api, client: ApiServer) -> None:
    watch = client.watch("n", client.node("n")["metadata"]["resourceVersion"])
    assert next(watch) == ("", {})
    api.set(lambda node: node["metadata"]["labels"].update(x="y"))
    kind, found = next(watch)
    assert (kind, found["metadata"]["labels"]["x"]) == ("MODIFIED", "y")
    api.bookmark()
    kind, found = next(watch)
    assert (kind, found["metadata"]["resourceVersion"]) == ("BOOKMARK", str(api.version))
    watch.close()


def test_a_quiet_watch_is_not_ended_by_the_limit_for_connecting() -> None:
    limit = _timeout(90.0)
    assert (limit.total, limit.connect_timeout, limit.read_timeout) == (None, 5.0, 90.0)


def test_a_watch_from_a_forgotten_version_ends_with_410(api: Api, client: ApiServer) -> None:
    version = client.node("n")["metadata"]["resourceVersion"]
    api.forget()
    watch = client.watch("n", version)
    next(watch)
    assert trouble(lambda: next(watch)).code == 410


def test_an_event_without_an_object_is_an_error(api: Api, client: ApiServer) -> None:
    """The reader of the watch parses the Node in a thread that is not restarted."""
    watch = client.watch("n", client.node("n")["metadata"]["resourceVersion"])
    next(watch)
    with api.changed:
        api.version += 1  # else it may be taken for one that was there before the watch
        api._tell("MODIFIED", [])  # type: ignore[arg-type]
    assert "something that is not an event" in str(trouble(lambda: next(watch)))


def test_a_closed_watch_is_an_error(api: Api, client: ApiServer) -> None:
    watch = client.watch("n", client.node("n")["metadata"]["resourceVersion"])
    next(watch)
    threading.Timer(0.05, api.cut).start()
    assert "the watch broke off" in str(trouble(lambda: list(watch)))
