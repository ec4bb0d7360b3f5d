"""The manifests of Kubernetes: they are what the published schemas allow, and fit each other and the programs."""

from __future__ import annotations

import copy
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509

from examples.digits.cluster.settings import parse
from ps_service import config
from ps_service.access.token_file import TokenFile
from ps_service.config import OwnerConfig

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
VERSION = "1.37"
"""The version of Kubernetes whose schemas are taken."""


def documents() -> dict[str, dict[str, Any]]:
    """All documents, by kind and name."""
    found = [each for path in sorted(FOLDER.glob("*.yaml")) for each in yaml.safe_load_all(path.read_text("utf-8"))]
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in found}


ALL = documents()
OWNERS, TRAINERS, RAY = ALL["StatefulSet/ps"], ALL["Job/digits"], ALL["RayCluster/ps"]
KNOWN = {name: each for name, each in ALL.items() if each is not RAY}


def ray_groups() -> dict[str, dict[str, Any]]:
    """The groups of nodes of the Ray cluster, by name."""
    return {"head": RAY["spec"]["headGroupSpec"]} | {
        each["groupName"]: each for each in RAY["spec"]["workerGroupSpecs"]
    }


def validate(document: dict[str, Any]) -> None:
    """Raises if the published schema does not allow a document, or does not know one of its fields."""
    schemas = pytest.importorskip("kubernetes_validate")
    schemas.validate(document, VERSION, strict=True)


def container(pods: dict[str, Any]) -> dict[str, Any]:
    """The only container of a template of pods."""
    (only,) = pods["spec"]["containers"]
    return only


def variables(pods: dict[str, Any]) -> dict[str, str]:
    """The variables that have values in the manifest."""
    return {each["name"]: each["value"] for each in container(pods)["env"] if "value" in each}


# Schemas


def test_there_are_documents_of_all_kinds() -> None:
    kinds = [name.partition("/")[0] for name in ALL]
    assert sorted(kinds) == sorted(
        ["Service", "StatefulSet", "PodDisruptionBudget", "NetworkPolicy", "Job", "PersistentVolumeClaim", "RayCluster"]
    )


@pytest.mark.parametrize("name", KNOWN)
def test_the_published_schemas_allow_them(name: str) -> None:
    validate(KNOWN[name])


@pytest.mark.parametrize("group", ray_groups())
def test_the_pods_of_the_ray_cluster_are_allowed(group: str) -> None:
    pods = ray_groups()[group]["template"]
    validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": group, **pods["metadata"]}, "spec": pods["spec"]})


def test_a_field_that_is_not_known_is_refused() -> None:
    wrong = copy.deepcopy(OWNERS)
    container(wrong["spec"]["template"])["readynessProbe"] = {}
    with pytest.raises(Exception, match="readynessProbe"):
        validate(wrong)


# Owners


def test_owners_understand_their_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    pods = OWNERS["spec"]["template"]
    given = {key: value.replace("$(POD_NAME)", "ps-1") for key, value in variables(pods).items()}
    options = {key: value for key, value in given.items() if key.startswith("PS_")}
    assert options.keys() <= {f"PS_{(field.alias or key).upper()}" for key, field in OwnerConfig.model_fields.items()}
    for key, value in options.items():
        monkeypatch.setenv(key, value)
    understood = config.load()
    assert understood.name == "ps-1" and understood.tls is not None and understood.token_file is not None
    assert not understood.insecure and understood.tls.client_ca is not None, "callers show certificates"
    assert understood.drain_seconds < pods["spec"]["terminationGracePeriodSeconds"]
    service = ALL["Service/ps"]["metadata"]["name"]
    assert OWNERS["spec"]["serviceName"] == service
    assert (understood.advertise, understood.directory) == (f"ps-1.{service}:50051", f"ps-0.{service}:50051")
    ports = {each["name"]: each["containerPort"] for each in container(pods)["ports"]}
    assert ports == {
        "grpc": int(understood.listen.rpartition(":")[2]),
        "direct": understood.direct_port,
        "http": int(understood.http.rpartition(":")[2]),
    }
    mounts = {each["mountPath"]: each["name"] for each in container(pods)["volumeMounts"]}
    (claim,) = OWNERS["spec"]["volumeClaimTemplates"]
    assert mounts[str(understood.data_dir)] == claim["metadata"]["name"]
    assert pods["spec"]["enableServiceLinks"] is False, "variables of the service would begin with PS_"


@pytest.mark.parametrize(("pod", "directory"), [("ps-0", "self"), ("ps-1", "ps-0.ps:50051")])
def test_the_first_owner_keeps_the_directory(pod: str, directory: str, tmp_path: Path) -> None:
    entry = tmp_path / "ps-entry"
    entry.write_text('#!/bin/sh\necho "$@" "$PS_DIRECTORY"\n')
    entry.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "POD_NAME": pod, "PS_DIRECTORY": "ps-0.ps:50051"}
    done = subprocess.run(
        container(OWNERS["spec"]["template"])["command"], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"server {directory}\n"


def test_ports_and_labels_are_those_of_the_pods() -> None:
    pods = OWNERS["spec"]["template"]
    labels, ports = pods["metadata"]["labels"], {each["name"] for each in container(pods)["ports"]}
    service, policy = ALL["Service/ps"]["spec"], ALL["NetworkPolicy/ps"]["spec"]
    selectors = [
        OWNERS["spec"]["selector"]["matchLabels"],
        service["selector"],
        ALL["PodDisruptionBudget/ps"]["spec"]["selector"]["matchLabels"],
        policy["podSelector"]["matchLabels"],
        policy["ingress"][0]["from"][0]["podSelector"]["matchLabels"],
        pods["spec"]["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"],
    ]
    assert all(each == labels for each in selectors)
    trainers = policy["ingress"][0]["from"][1]["podSelector"]["matchLabels"]
    assert trainers == TRAINERS["spec"]["template"]["metadata"]["labels"] != labels
    assert service["clusterIP"] == "None"
    assert {each["targetPort"] for each in service["ports"]} == ports
    assert {each["port"] for rule in policy["ingress"] for each in rule["ports"]} == ports


def test_no_container_has_more_rights_than_it_needs() -> None:
    templates = [OWNERS["spec"]["template"], TRAINERS["spec"]["template"]]
    for pods in (*templates, *(each["template"] for each in ray_groups().values())):
        assert pods["spec"]["securityContext"]["runAsNonRoot"] and not pods["spec"]["automountServiceAccountToken"]
        rights = container(pods)["securityContext"]
        assert rights["allowPrivilegeEscalation"] is False and rights["capabilities"] == {"drop": ["ALL"]}
    for pods in templates:
        assert pods["spec"]["securityContext"]["runAsUser"] == 10001, "the user of the image"
        assert container(pods)["securityContext"]["readOnlyRootFilesystem"]


# Certificates


def commands(page: str, begin: str) -> list[str]:
    """The commands of a page that begin so, without the lines' continuations."""
    text = page.replace("\\\n", "")
    return [line.removeprefix("$ ") for line in text.splitlines() if line.startswith(f"$ {begin}")]


def mounted(pods: dict[str, Any]) -> tuple[str, set[str]]:
    """The secret of a template of pods, and the files in it that the variables name."""
    secrets = [each["secret"]["secretName"] for each in pods["spec"]["volumes"] if "secret" in each]
    (mount,) = (each["mountPath"] for each in container(pods)["volumeMounts"] if each["name"] == "certs")
    named = [Path(value) for key, value in variables(pods).items() if key.startswith(("PS_TLS_", "PS_TOKEN_"))]
    assert {str(each.parent) for each in named} == {mount}
    return secrets[0], {each.name for each in named}


@pytest.mark.usefixtures("forked_programs")
def test_the_page_makes_the_files_that_are_mounted(tmp_path: Path) -> None:
    page = (FOLDER / "README.md").read_text("utf-8")
    environment = os.environ | {"PS_TOKEN_FILE": "certs/identities"}
    for command in commands(page, "ps-service certs") + commands(page, "ps-service token"):
        given = [sys.executable, "-m", *shlex.split(command.replace("ps-service", "ps_service", 1), comments=True)]
        subprocess.run(given, cwd=tmp_path, env=environment, check=True)
    made = {
        words[4]: {each.removeprefix("--from-file=") for each in words[5:]}
        for words in map(shlex.split, commands(page, "kubectl create secret"))
    }
    for each in (OWNERS, TRAINERS):
        secret, files = mounted(each["spec"]["template"])
        assert {Path(path).name for path in made[secret]} == files
        assert all((tmp_path / path).is_file() for path in made[secret])
    assert "certs/owner.key" not in made["ps-trainers"]
    owners = [f"ps-{number}.ps" for number in range(OWNERS["spec"]["replicas"])]
    certificate = x509.load_pem_x509_certificate((tmp_path / "certs" / "owner.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    # The health check asks 127.0.0.1.
    assert {"ps", *owners} <= set(names.get_values_for_type(x509.DNSName))
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    identities = {each.name: each for each in TokenFile(tmp_path / "certs" / "identities").read()}
    assert identities["owners"].roles == ("owner",) and set(identities["owners"].certificates) <= {"ps"}
    assert identities["trainers"].certificates == ("trainer",)


# Trainers


def test_trainers_understand_their_environment() -> None:
    pods = TRAINERS["spec"]["template"]
    assert container(pods)["args"] == ["trainer"]
    settings = parse([], variables(pods))
    assert settings.directory == f"{ALL['Service/ps']['metadata']['name']}:50051"
    assert list(settings.owners) == [f"ps-{number}" for number in range(OWNERS["spec"]["replicas"])]
    assert settings.grace < pods["spec"]["terminationGracePeriodSeconds"]


# Ray


def test_the_ray_cluster_fits_the_extra_and_the_command() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert extras["ray"] == [f"ray=={RAY['spec']['rayVersion']}"]
    page = (FOLDER / "README.md").read_text("utf-8")
    assert f"rayproject/ray:{RAY['spec']['rayVersion']}-" in page
    label = re.search(r"ps-service ray up .*--label (\w+)=(\w+)", page)
    assert label is not None and ray_groups()["owners"]["labels"] == {label[1]: label[2]}
    # Owners are small actors with a process beside, which Ray must not run behind all others.
    for group in ("head", "owners"):
        assert variables(ray_groups()[group]["template"])["RAY_worker_niceness"] == "0"
    data = re.search(r"--data-dir (/\w+)/", page)
    for group in ray_groups().values():
        (volume,) = group["template"]["spec"]["volumes"]
        assert f"PersistentVolumeClaim/{volume['persistentVolumeClaim']['claimName']}" in ALL
        (mount,) = container(group["template"])["volumeMounts"]
        assert data is not None and (mount["name"], mount["mountPath"]) == (volume["name"], data[1])
