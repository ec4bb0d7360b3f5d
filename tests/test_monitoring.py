"""Tests that all queries to Prometheus use metrics that owners export, and are valid."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from ps_service.engine import Engine
from ps_service.hosting import creation
from ps_service.monitoring import exporter
from ps_service.quotas.quota import QuotaFile
from ps_service.training.creation import create_optimizer
from ps_wire.tables.names import SHARD
from ps_wire.tables.options import SGD, Zeros
from tests.cases import case
from trainer_client.tables.table_spec import TableSpec

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
PROMTOOL = shutil.which("promtool")
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "dashboards" / "owners.json").read_text("utf-8"))

needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")


def read(file: str) -> Any:
    """A YAML file under deploy/."""
    return yaml.safe_load((DEPLOY / file).read_text("utf-8"))


# The questions


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def of_the_dashboard() -> Iterator[str]:
    for panel in panels():
        yield from (target["expr"] for target in panel["targets"])
    yield from (each["expr"] for each in DASHBOARD["annotations"]["list"])


def of_the_rules() -> Iterator[str]:
    (group,) = read("prometheus/rules.yml")["groups"]
    yield from (rule["expr"] for rule in group["rules"])


def of_the_page() -> Iterator[str]:
    text = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    yield from (found[1].strip() for found in re.finditer(r"```promql\n(.*?)```", text, re.DOTALL))


QUESTIONS = [*of_the_dashboard(), *of_the_rules(), *of_the_page()]


# What owners tell


TABLE = TableSpec("items", 2, None, torch.float32, Zeros(), SGD(), 0, None, (), None).settings(["ps0"])


class Told:
    """The names of all series, and which values each of their labels has."""

    def __init__(self) -> None:
        with tempfile.NamedTemporaryFile("w") as quotas:
            quotas.write("all.objects = 9")
            quotas.flush()
            engine = Engine("ps0", quotas=QuotaFile(Path(quotas.name)))
        net, _ = creation.create(engine, "torch.nn.Linear", (2, 2), {}, name="net")
        creation.create(engine, SHARD, (), TABLE, name="items")
        refs = [net.ref._replace(parameter=name) for name in net.parameters]
        create_optimizer(engine, "torch.optim.SGD", [(refs, {})], {"lr": 0.1})
        self.values: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        for family in text_string_to_metric_families(generate_latest(exporter.registry(engine)).decode()):
            for sample in family.samples:
                self.values[sample.name]["instance"] = {"ps0"}
                self.values[sample.name]["job"] = {"owners"}
                for label, value in sample.labels.items():
                    self.values[sample.name][label].add(value)
        # Of every target, whatever it is.
        self.values["up"] = defaultdict(set, instance={"ps0"}, job={"owners"})
        engine.close()


@pytest.fixture(scope="module")
def told() -> Told:
    return Told()


KEYWORDS = {"by", "without", "on", "ignoring", "group_left", "group_right", "and", "or", "unless", "bool", "offset"}


def selectors(question: str) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """The series that a question names, with their matchers: label, comparison and value."""
    rest = re.sub(r"\[[^\]]*\]", "", question)
    rest = re.sub(r"\b(?:by|without|on|ignoring|group_left|group_right) ?\([^)]*\)", "", rest)
    found = []
    for name, braces in re.findall(
        r'(?<!\w)([a-zA-Z_:][\w:]*)(?!\w|\s*\()(\{(?:[^}"]|"[^"]*")*\})?', _without_values(rest)
    ):
        if name not in KEYWORDS:
            found.append((name, braces))
    values = iter(re.findall(r'"([^"]*)"', rest))
    return [
        (name, [(label, how, next(values)) for label, how in re.findall(r'(\w+) ?(=~|!~|!=|=) ?""', braces)])
        for name, braces in found
    ]


def _without_values(text: str) -> str:
    return re.sub(r'"[^"]*"', '""', text)


def grouped(question: str) -> set[str]:
    """The labels by which a question sums up or joins."""
    found = re.findall(r"\b(?:by|without|on|ignoring) ?\(([^)]*)\)", question)
    return {label.strip() for labels in found for label in labels.split(",")}


def test_questions_are_taken_apart_rightly() -> None:
    question = 'sum by (le, a) (rate(x_bucket{a="b}", c=~"d|e"}[5m])) > bool 0 and on (a) y unless z{} == 1e3'
    assert selectors(question) == [("x_bucket", [("a", "=", "b}"), ("c", "=~", "d|e")]), ("y", []), ("z", [])]
    assert grouped(question) == {"le", "a"}


def test_there_are_questions() -> None:
    assert len(list(of_the_dashboard())) > 30
    assert len(list(of_the_rules())) == 8
    assert len(list(of_the_page())) > 5


def test_a_query_names_only_existing_metrics(told: Told) -> None:
    for question in QUESTIONS:
        with case(question):
            named = selectors(question)
            assert named
            for name, matchers in named:
                assert name in told.values, name
                for label, _, value in matchers:
                    assert label in told.values[name], f"{name} has no label {label}"
                    if not value.startswith("$"):
                        assert set(value.split("|")) <= told.values[name][label], f"{label} of {name} is never {value}"
            known = {label for name, _ in named for label in told.values[name]}
            assert grouped(question) <= known


@needs_promtool
def test_every_question_can_be_asked(tmp_path: Path) -> None:
    rules = [
        {"record": f"question:{number}", "expr": question.replace("$__rate_interval", "20s")}
        for number, question in enumerate(QUESTIONS)
    ]
    # JSON is YAML.
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "questions", "rules": rules}]}))
    done = promtool("check", "rules", str(tmp_path / "rules.yml"))
    assert done.returncode == 0, done.stderr
    assert f"{len(QUESTIONS)} rules found" in done.stdout


# Prometheus


@needs_promtool
def test_promtool_takes_the_configuration() -> None:
    # The certificates are in a volume.
    for arguments in (("config", "--syntax-only", "prometheus.yml"), ("rules", "rules.yml")):
        done = promtool("check", *arguments)
        assert done.returncode == 0, done.stderr


@needs_promtool
def test_alerts_speak_up_when_they_should() -> None:
    done = promtool("test", "rules", "rules_test.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested_and_has_a_description() -> None:
    (group,) = read("prometheus/rules.yml")["groups"]
    tests = [test for each in read("prometheus/rules_test.yml")["tests"] for test in each["alert_rule_test"]]
    heard = [test["alertname"] for test in tests if test.get("exp_alerts")]
    assert [rule["alert"] for rule in group["rules"]] == heard
    for rule in group["rules"]:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"].keys() == {"summary", "description"}


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(PROMTOOL), *arguments]
    return subprocess.run(command, cwd=DEPLOY / "prometheus", capture_output=True, text=True, timeout=60, check=False)


# The dashboard


def test_every_metric_of_the_owner_is_shown() -> None:
    shown = {name for question in of_the_dashboard() for name, _ in selectors(question)}
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}
    page = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    there = set(re.findall(r"^\| `(ps_\w+)` \|", page, re.MULTILINE))
    assert there - shown == {"ps_compute_threads"}, "a setting, not a measurement"


def test_panels_do_not_overlap_and_have_descriptions() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    for panel in panels():
        assert panel["title"] and panel["description"], panel
        assert panel["datasource"]["uid"] == "${datasource}"
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_legends_name_labels_that_the_answer_has(told: Told) -> None:
    for panel in panels():
        for target in panel["targets"]:
            question = target["expr"]
            own = {label for name, _ in selectors(question) for label in told.values[name]}
            has = grouped(question) if re.search(r"\bby \(", question) else own
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= has, panel["title"]


def test_variables_are_there_and_used(told: Told) -> None:
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    text = json.dumps(DASHBOARD)
    used = set(re.findall(r"\$\{?(\w+)", text)) - {"__rate_interval", "__all"}
    assert used == variables.keys() == {"datasource", "instance", "optimizer"}
    for name in ("instance", "optimizer"):
        series, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variables[name]["definition"]).groups()  # type: ignore[union-attr]
        ((metric, _),) = selectors(series)
        assert label in told.values[metric]


def test_grafana_finds_its_source_and_its_dashboards() -> None:
    (source,) = read("grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    (provider,) = read("grafana/provisioning/dashboards/owners.yaml")["providers"]
    services = read("compose.yaml")["services"]
    current = next(each for each in DASHBOARD["templating"]["list"] if each["name"] == "datasource")["current"]
    assert (source["uid"], source["type"]) == (current["value"], "prometheus")
    assert source["url"] == "http://prometheus:9090"
    mounts = services["grafana"]["volumes"]
    assert f"./grafana/dashboards:{provider['options']['path']}:ro" in mounts
    assert "./grafana/provisioning:/etc/grafana/provisioning:ro" in mounts
    assert "./prometheus:/etc/prometheus:ro" in services["prometheus"]["volumes"]


def test_prometheus_scrapes_the_owners_of_compose() -> None:
    configuration = read("prometheus/prometheus.yml")
    owners, _ = configuration["scrape_configs"]
    (static,) = owners["static_configs"]
    services = read("compose.yaml")["services"]
    listening = {
        name: each["environment"]["PS_HTTP"].rpartition(":")[2]
        for name, each in services.items()
        if "PS_HTTP" in (each.get("environment") or {})
    }
    assert static["targets"] == [f"{name}:{port}" for name, port in listening.items()]
    assert len(listening) == 3
    (source,) = read("grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    assert source["jsonData"]["timeInterval"] == configuration["global"]["scrape_interval"]


def test_the_name_of_an_owner_is_its_instance() -> None:
    owners, _ = read("prometheus/prometheus.yml")["scrape_configs"]
    (relabel,) = owners["relabel_configs"]
    assert relabel["target_label"] == "instance"
    assert re.fullmatch(relabel["regex"], "ps0:9464").group(1) == "ps0"  # type: ignore[union-attr]
