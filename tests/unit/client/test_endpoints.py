"""Which service is addressed, and which token it gets."""

import os
import stat
from pathlib import Path

import pytest

from shadowprice.client.endpoints import (
    Endpoint,
    SavedEndpoints,
    config_file,
    normalize_url,
    resolve_endpoint,
)
from shadowprice.core.errors import InputError


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def _keep(**known: Endpoint) -> None:
    SavedEndpoints(dict(known), next(iter(known))).save()


def test_stored_credentials_are_readable_by_their_owner_only() -> None:
    _keep(lab=Endpoint("https://lab", "t-lab"), home=Endpoint("http://127.0.0.1:1", None))
    assert stat.S_IMODE(config_file().stat().st_mode) == 0o600
    kept = SavedEndpoints.load()
    assert kept.endpoints == {
        "lab": Endpoint("https://lab", "t-lab"),
        "home": Endpoint("http://127.0.0.1:1"),
    }
    assert kept.default == "lab"
    assert [path.name for path in config_file().parent.iterdir()] == ["servers.json"]


def test_a_file_that_others_can_read_is_refused() -> None:
    _keep(lab=Endpoint("https://lab", "t-lab"))
    config_file().chmod(0o640)
    with pytest.raises(InputError, match="can be read by others; run: chmod 600 "):
        SavedEndpoints.load()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"servers": 1}',
        '{"servers": {"a": {}}}',
        '{"servers": {"a": {"url": "ftp://x"}}}',
    ],
)
def test_a_damaged_file_is_reported(text: str) -> None:
    _keep(lab=Endpoint("https://lab"))
    config_file().write_text(text)
    with pytest.raises(InputError, match=r"servers\.json"):
        SavedEndpoints.load()


def _environment(server: str | None, token: str | None = None) -> dict[str, str]:
    given = {"SHADOWPRICE_SERVER": server, "SHADOWPRICE_TOKEN": token}
    return {name: value for name, value in given.items() if value is not None}


@pytest.mark.parametrize(
    ("named", "environment", "meant"),
    [  # what is given, SERVER and TOKEN of the environment, the expected service
        (None, {}, ("https://lab", "t-lab")),
        (None, _environment(None, "mine"), ("https://lab", "mine")),
        ("other", {}, ("https://other:9", "t-other")),
        ("https://other:9", {}, ("https://other:9", "t-other")),
        ("https://new:9", {}, ("https://new:9", None)),
        (None, _environment("other"), ("https://other:9", "t-other")),
        (None, _environment("https://new:9", "mine"), ("https://new:9", "mine")),
        # The environment's token belongs to the environment's server, and goes to no other.
        ("other", _environment("https://new:9", "mine"), ("https://other:9", "t-other")),
        ("https://evil", _environment("lab", "mine"), ("https://evil", None)),
        ("https://evil", _environment(None, "mine"), ("https://evil", None)),
        ("other", _environment(None, "mine"), ("https://other:9", "t-other")),
        ("lab", _environment("https://lab", "mine"), ("https://lab", "mine")),
    ],
)
def test_which_server_and_which_token(named, environment, meant) -> None:
    _keep(lab=Endpoint("https://lab", "t-lab"), other=Endpoint("https://other:9", "t-other"))
    assert resolve_endpoint(named, environment) == Endpoint(*meant)


def test_without_anything_it_is_the_default_address() -> None:
    assert resolve_endpoint(None, {}) == Endpoint("http://127.0.0.1:8642")


@pytest.mark.parametrize("text", ["", "nowhere", "mine"])
def test_an_unknown_name_lists_those_known(text: str) -> None:
    _keep(lab=Endpoint("https://lab"))
    with pytest.raises(InputError, match="save it with shadowprice login; saved: lab"):
        resolve_endpoint(text, {})


@pytest.mark.parametrize(
    "text",
    [
        "ftp://x",
        "http://",
        "http://a b",
        "http://u:p@x",
        "http://x:0",
        "http://x:99999999",
        "http://x?a=b",
        "\n",
    ],
)
def test_invalid_addresses(text: str) -> None:
    with pytest.raises(InputError):
        normalize_url(text)


def test_a_port_alone_needs_no_scheme() -> None:
    assert normalize_url("127.0.0.1:8642/") == "http://127.0.0.1:8642"


def test_a_user_without_a_home_names_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in containers that run as a number: no HOME, and no user name."""
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", dict[int, object]().__getitem__)
    assert config_file() is None
    assert resolve_endpoint("http://lab:1", {}).url == "http://lab:1"
    with pytest.raises(InputError, match="no home directory to store servers in; set XDG"):
        SavedEndpoints({"lab": Endpoint("http://lab:1")}).save()


def test_a_folder_that_cannot_be_made_is_reported_with_what_helps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/dev/null")
    with pytest.raises(InputError, match=r"/dev/null.*cannot be written.*set XDG_CONFIG_HOME"):
        SavedEndpoints({"lab": Endpoint("http://lab:1")}).save()


def test_a_file_that_cannot_be_written_is_reported_with_what_helps() -> None:
    folder = config_file().parent
    (folder / f".servers.json.{os.getpid()}").mkdir(parents=True)
    with pytest.raises(InputError, match=r"cannot be written \(Is a directory\); set "):
        _keep(lab=Endpoint("https://lab"))
