"""compose.yaml and .env: they fit together, and they fit what the programs understand."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from examples.digits.cluster.settings import PREFIX, parse
from ps_service import config
from ps_service.access.token_file import TokenFile
from ps_service.cli.commands import app
from ps_service.config import OwnerConfig
from ps_service.hosting.allowlist import AllowList

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
TEXT = (DEPLOY / "compose.yaml").read_text("utf-8")
OWNERS = ("directory", "ps0", "ps1")
VARIABLE = re.compile(r"\$\{(\w+)\}")


def defaults() -> dict[str, str]:
    """What .env says, without comments."""
    lines = (DEPLOY / ".env").read_text("utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """The services, with the default settings."""
    filled = VARIABLE.sub(lambda found: defaults()[found[1]], TEXT)
    return yaml.safe_load(filled)["services"]


def seconds(duration: str) -> float:
    """How long `40s` is."""
    return float(duration.removesuffix("s"))


# .env


def test_every_variable_has_a_default_and_every_default_is_used() -> None:
    # Compose itself looks for the name of the project.
    assert set(VARIABLE.findall(TEXT)) == defaults().keys() - {"COMPOSE_PROJECT_NAME"}
    assert TEXT.count("$") == len(VARIABLE.findall(TEXT)), "no variable is written in another way"


def test_nothing_is_offered_beyond_this_host(services: dict[str, Any]) -> None:
    assert ipaddress.ip_address(defaults()["PS_BIND"]).is_loopback
    published = [port for service in services.values() for port in service.get("ports", ())]
    assert len(published) == 8
    assert all(port.startswith(defaults()["PS_BIND"] + ":") for port in published)
    assert len({port.split(":")[1] for port in published}) == 8, "no port is offered twice"


# Owners


@pytest.mark.parametrize("name", OWNERS)
def test_owners_understand_their_environment(
    services: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = services[name]
    environment = {key: str(value) for key, value in service["environment"].items() if key.startswith("PS_")}
    known = {f"PS_{(field.alias or key).upper()}" for key, field in OwnerConfig.model_fields.items()}
    assert environment.keys() <= known
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    understood = config.load()
    assert understood.name == name
    assert understood.advertise == f"{name}:{understood.listen.rpartition(':')[2]}"
    assert understood.directory == (
        "self" if name == "directory" else services["directory"]["environment"]["PS_ADVERTISE"]
    )
    assert understood.tls is not None and understood.tls.client_ca is not None and not understood.insecure
    assert understood.peer_tls is not None and understood.peer_tls.ca == understood.tls.client_ca
    assert service["volumes"] == [f"{name}:{understood.data_dir}", "certs:/certs:ro"]
    assert service["depends_on"]["certs"] == {"condition": "service_completed_successfully"}
    targets = [port.split(":")[-1] for port in service["ports"]]
    assert targets == [understood.listen.rpartition(":")[2], understood.http.rpartition(":")[2]]
    AllowList.importing(understood.imports).hosted("examples.digits.cluster.Layers")


@pytest.mark.parametrize("name", OWNERS)
def test_owners_have_time_to_drain_and_come_back_when_they_fail(services: dict[str, Any], name: str) -> None:
    service = services[name]
    # One second more is what the command line gives hosted code that does not end.
    assert seconds(service["stop_grace_period"]) > float(service["environment"]["PS_DRAIN_SECONDS"]) + 1
    assert service["restart"] == "unless-stopped"
    assert service["healthcheck"]["test"] == ["CMD", "ps-health"]
    assert service["command"] == ["server"]


# Certificates


def test_certificates_have_the_names_of_all_owners_and_are_made_once(
    services: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, command = services["certs"]["command"]
    made, shared, *identities = command.replace("/certs", str(tmp_path)).split(" && ")
    program, *arguments = made.split()
    assert program == "ps-service"
    for _ in range(2):
        ran = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert ran.exit_code == 0, ran.output
        before = (tmp_path / "ca.pem").read_bytes()
    assert (tmp_path / "ca.pem").read_bytes() == before
    for each in identities:
        if each.startswith("ps-service token add "):
            assert CliRunner().invoke(app, each.split()[1:], catch_exceptions=False).exit_code == 0
    assert identities[-1].split()[:2] == ["mv", str(tmp_path / "new")]
    (tmp_path / "new").rename(identities[-1].split()[2].rstrip(";"))
    known = {each.name: (each.roles, each.certificates) for each in TokenFile(tmp_path / "identities").read()}
    assert known["owners"] == (("owner",), ("directory",)) and known["trainer"] == (("trainer", "bulk"), ("trainer",))
    assert known["operator"][0] == ("admin",) and known["prometheus"][0] == ("reader",)
    assert arguments[arguments.index("--host") :: 2][: len(OWNERS) + 2] == ["--host"] * (len(OWNERS) + 2)
    assert {"localhost", "127.0.0.1", *OWNERS} <= {*arguments}
    named = {value for name in (*OWNERS, "trainer") for value in services[name]["environment"].values()}
    files = {str(value) for value in named if str(value).startswith("/certs/")}
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text("utf-8"))["scrape_configs"][0]
    for file in (*files, *scraped["tls_config"].values(), shared.split()[-1]):
        assert (tmp_path / Path(file).name).exists(), file


# Trainers


def test_trainers_understand_their_environment(services: dict[str, Any]) -> None:
    environment = {
        key: str(value) for key, value in services["trainer"]["environment"].items() if key.startswith(PREFIX)
    }
    default = parse(["--seed", "0"], {})
    understood = parse(["--seed", "0"], environment)
    assert understood == parse(["--seed", "0", "--directory", "directory:50051"], {}), "the defaults are the same"
    # A trainer that is not told its seed chooses one; the files are not in the image.
    assert environment.keys() == {PREFIX + name.upper() for name in vars(default)} - {PREFIX + "SEED", PREFIX + "DATA"}
    assert set(understood.owners) <= services.keys()
    assert understood.directory == services["directory"]["environment"]["PS_ADVERTISE"]


def test_trainers_finish_their_pass_when_they_are_stopped_and_are_not_started_again(services: dict[str, Any]) -> None:
    trainer = services["trainer"]
    assert seconds(trainer["stop_grace_period"]) > float(trainer["environment"]["PS_TRAINER_GRACE"])
    assert trainer["restart"] == "no"
    assert trainer["healthcheck"] == {"disable": True}, "the image's asks for an owner"
    assert trainer["scale"] == 2
    assert {name: each["condition"] for name, each in trainer["depends_on"].items()} == dict.fromkeys(
        OWNERS, "service_healthy"
    )


# All of them


def test_owners_and_trainers_have_one_image_and_no_rights(services: dict[str, Any]) -> None:
    ours = [services[name] for name in (*OWNERS, "trainer", "certs")]
    for service in ours:
        assert (service["image"], service["build"]) == (ours[0]["image"], ours[0]["build"])
        assert (service["init"], service["read_only"], service["cap_drop"]) == (True, True, ["ALL"])
        assert "no-new-privileges:true" in service["security_opt"]
        assert int(service["environment"]["OMP_NUM_THREADS"]) >= 1
    build = ours[0]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()


def test_observing_services_are_pinned_optional_and_read_only(services: dict[str, Any]) -> None:
    observing = {name: service for name, service in services.items() if "profiles" in service}
    assert observing.keys() == {"prometheus", "grafana"}
    volumes = yaml.safe_load(TEXT)["volumes"]
    for service in observing.values():
        assert service["profiles"] == ["observe"]
        assert re.fullmatch(r"[\w/-]+:v?\d+\.\d+\.\d+", service["image"]), "a version, and no registry"
        for mount in service["volumes"]:
            source, _, *mode = mount.split(":")
            if source.startswith("."):
                assert mode == ["ro"] and (DEPLOY / source).is_dir()
            else:
                assert source in volumes


def test_compose_is_not_told_a_version() -> None:
    # Version 2 of Compose warns of it; 1.29 does without.
    assert yaml.safe_load(TEXT).keys() == {
        "x-process",
        "x-owner",
        "x-owner-environment",
        "services",
        "volumes",
    }


def test_prometheus_asks_every_owner(services: dict[str, Any]) -> None:
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text("utf-8"))
    (owners,) = (job for job in scraped["scrape_configs"] if job["job_name"] == "owners")
    targets = {target for each in owners["static_configs"] for target in each["targets"]}
    assert targets == {f"{name}:{services[name]['environment']['PS_HTTP'].rpartition(':')[2]}" for name in OWNERS}
