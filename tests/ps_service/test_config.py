"""Tests that flags override the environment, that overrides the TOML file, and that overrides the defaults."""

from __future__ import annotations

import inspect
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import pydantic
import pytest
import torch

from ps_service import config
from ps_service.config import OwnerConfig
from ps_service.server import Server
from ps_wire.limits import MIB, Limits
from ps_wire.tls import TLS, ServerTLS
from tests.cases import case

ROOT = Path(__file__).parent.parent.parent


class Field(NamedTuple):
    """One field: its default, and three other values, as each source writes them."""

    default: Any
    toml: tuple[str, Any]
    variable: tuple[str, Any]
    flag: Any


FIELDS: dict[str, Field] = {
    "name": Field("ps0", ('"ps1"', "ps1"), ("ps2", "ps2"), "ps3"),
    "listen": Field("127.0.0.1:50051", ('"127.0.0.1:1"', "127.0.0.1:1"), ("localhost:0", "localhost:0"), "[::1]:65535"),
    "imports": Field((), ('["a", "b.c"]', ("a", "b.c")), ("d, e.f,", ("d", "e.f")), ("g",)),
    "directory": Field("", ('"127.0.0.1:1"', "127.0.0.1:1"), ("self", "self"), "self"),
    "advertise": Field("", ('"a:1"', "a:1"), ("b:2", "b:2"), "c:3"),
    "http": Field("", ('"127.0.0.1:9464"', "127.0.0.1:9464"), ("localhost:0", "localhost:0"), "[::1]:9464"),
    "data_dir": Field(None, ('"here/data"', Path("here/data")), ("there", Path("there")), Path("elsewhere")),
    "wait_for_data_dir": Field(0.0, ("0.5", 0.5), ("4", 4.0), 60.0),
    "checkpoint_every": Field(0.0, ("0.5", 0.5), ("4", 4.0), 60.0),
    "durability": Field("", ('"always"', "always"), ("interval:1", "interval:1"), "interval:0.5"),
    "log_bytes": Field(1024 * MIB, (str(2 * MIB), 2 * MIB), (str(3 * MIB), 3 * MIB), MIB),
    "keep_checkpoints": Field(2, ("3", 3), ("4", 4), 1),
    "checkpoint_key_file": Field(None, ('"keys"', Path("keys")), ("k", Path("k")), Path("elsewhere")),
    "leave_out": Field((), ('["a", "b"]', ("a", "b")), ("c, d,", ("c", "d")), ("e",)),
    "device": Field("cpu", ('"meta"', "meta"), ("cpu:0", "cpu:0"), "cpu"),
    "threads": Field(0, ("3", 3), ("4", 4), 0),
    "spare_threads": Field(0, ("3", 3), ("4", 4), 5),
    "torch_threads": Field(0, ("3", 3), ("4", 4), 5),
    "share_cores": Field(False, ("true", True), ("false", False), True),
    "max_message_bytes": Field(1024 * MIB, (str(2 * MIB), 2 * MIB), (str(3 * MIB), 3 * MIB), MIB),
    "max_in_flight": Field(1024, ("3", 3), ("4", 4), 1),
    "max_session_bytes": Field(256 * MIB, (str(2 * MIB), 2 * MIB), (str(3 * MIB), 3 * MIB), MIB),
    "max_owner_bytes": Field(2048 * MIB, (str(2 * MIB), 2 * MIB), (str(3 * MIB), 3 * MIB), MIB),
    "max_result_bytes": Field(1024 * MIB, (str(2 * MIB), 2 * MIB), (str(3 * MIB), 3 * MIB), MIB),
    "max_context_bytes": Field(0, (str(2 * MIB), 2 * MIB), (str(3 * MIB), 3 * MIB), 1),
    "max_object_bytes": Field(0, (str(2 * MIB), 2 * MIB), (str(3 * MIB), 3 * MIB), 1),
    "max_table_bytes": Field(0, (str(2 * MIB), 2 * MIB), (str(3 * MIB), 3 * MIB), 1),
    "compile_tables": Field(True, ("false", False), ("true", True), False),
    "torch_functions": Field("basic", ('"off"', "off"), ("all", "all"), "basic"),
    "lease_seconds": Field(30.0, ("0.5", 0.5), ("4", 4.0), 5.5),
    "max_context_seconds": Field(3600.0, ("0", 0.0), ("60", 60.0), 90.5),
    "drain_seconds": Field(20.0, ("0.5", 0.5), ("4", 4.0), 0.0),
    "until_eof": Field(False, ("true", True), ("false", False), True),
    "reload": Field(False, ("true", True), ("false", False), True),
    "direct_port": Field(0, ('"off"', "off"), ("50151", 50151), 50152),
    "shared_memory": Field(True, ("false", False), ("true", True), False),
    "tls_cert": Field(None, ('"a.pem"', Path("a.pem")), ("b.pem", Path("b.pem")), Path("c.pem")),
    "tls_key": Field(None, ('"a.key"', Path("a.key")), ("b.key", Path("b.key")), Path("c.key")),
    "tls_client_ca": Field(None, ('"a.pem"', Path("a.pem")), ("b.pem", Path("b.pem")), Path("c.pem")),
    "token_file": Field(None, ('"a"', Path("a")), ("b", Path("b")), Path("c")),
    "own_token_file": Field(None, ('"a"', Path("a")), ("b", Path("b")), Path("c")),
    "quota_file": Field(None, ('"a"', Path("a")), ("b", Path("b")), Path("c")),
    "tls_ca": Field(None, ('"a.pem"', Path("a.pem")), ("b.pem", Path("b.pem")), Path("c.pem")),
    "tls_min_version": Field("1.3", ('"1.2"', "1.2"), ("1.2", "1.2"), "1.3"),
    "insecure": Field(False, ("true", True), ("false", False), True),
    "slow_call_seconds": Field(10.0, ("0.5", 0.5), ("4", 4.0), 0.0),
    "audit_log": Field("", ('"a.jsonl"', "a.jsonl"), ("-", "-"), "b.jsonl"),
    "log_level": Field("info", ('"debug"', "debug"), ("warning", "warning"), "error"),
    "log_format": Field("auto", ('"text"', "text"), ("json", "json"), "auto"),
}


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in OwnerConfig.model_fields:
        monkeypatch.delenv(f"PS_{field.upper()}", raising=False)
    monkeypatch.delenv("PS_IMPORT", raising=False)


def variable_of(field: str) -> str:
    return "PS_IMPORT" if field == "imports" else f"PS_{field.upper()}"


def key_of(field: str) -> str:
    return "import" if field == "imports" else field


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "owner.toml"


def test_every_field_is_tested_here() -> None:
    assert FIELDS.keys() == OwnerConfig.model_fields.keys()


def test_each_source_wins_over_the_next(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = config.load()
    file.write_text("".join(f"{key_of(field)} = {expected.toml[0]}\n" for field, expected in FIELDS.items()))
    of_file = config.load(file)
    for field, expected in FIELDS.items():
        monkeypatch.setenv(variable_of(field), expected.variable[0])
    of_variables, not_given = config.load(file), config.load(file, **dict.fromkeys(FIELDS))
    of_flags = config.load(file, **{field: expected.flag for field, expected in FIELDS.items()})
    for field, expected in FIELDS.items():
        with case(field):
            assert getattr(defaults, field) == expected.default
            assert getattr(of_file, field) == expected.toml[1]
            assert getattr(of_variables, field) == expected.variable[1]
            assert getattr(not_given, field) == expected.variable[1], "a flag that was not given"
            assert getattr(of_flags, field) == expected.flag
            assert type(getattr(of_flags, field)) is type(expected.flag)


def test_the_sources_fill_one_configuration(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text('name = "ps7"\nthreads = 3\nlease_seconds = 5\n')
    monkeypatch.setenv("PS_THREADS", "4")
    monkeypatch.setenv("PS_LEASE_SECONDS", "6")
    loaded = config.load(file, lease_seconds=7.0)
    assert (loaded.name, loaded.threads, loaded.lease_seconds, loaded.max_in_flight) == ("ps7", 4, 7.0, 1024)


@pytest.mark.parametrize(
    ("toml", "expected"),
    [
        ('import = ["a", "b"]', ("a", "b")),
        ('import = "a, b"', ("a", "b")),
        ('import = ""', ()),
        ("import = []", ()),
        ('imports = ["a"]', ("a",)),
    ],
)
def test_modules_are_a_list_or_text_with_commas(file: Path, toml: str, expected: tuple[str, ...]) -> None:
    file.write_text(toml)
    assert config.load(file).imports == expected


def test_modules_may_be_given_by_several_flags() -> None:
    assert config.load(imports=["a, b", "c"]).imports == ("a", "b", "c")
    assert config.load(imports=[]).imports == ()


def test_the_arguments_of_a_server_are_its_settings() -> None:
    settings = config.load(listen="127.0.0.1:7", insecure=True)
    expected = {"listen": "127.0.0.1:7", "insecure": True, "http": "", "direct_port": 0, "checkpoint_every": 0.0}
    expected |= {"keep_checkpoints": 2, "leave_out": (), "durability": "", "log_bytes": 1024 * MIB}
    expected |= {"wait_for_data_dir": 0.0, "tls": None, "checkpoint_key_file": None}
    assert settings.serving == expected
    assert settings.serving.keys() <= inspect.signature(Server).parameters.keys()


def test_every_limit_is_a_setting_of_the_same_default() -> None:
    # How much shared memory there is follows from the setting `shared_memory`.
    limits = {field.name: field.default for field in fields(Limits) if field.name != "max_segment_bytes"}
    assert OwnerConfig().model_dump(include=set(limits)) == limits


def test_a_variable_without_the_prefix_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMPORT", "evil")
    monkeypatch.setenv("NAME", "evil")
    monkeypatch.setenv("PS_SOMETHING_ELSE", "1")
    loaded = config.load()
    assert (loaded.imports, loaded.name) == ((), "ps0")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("name", "p s", "an owner's name is made of letters, digits, '_', '.' and '-'"),
        ("name", "", "an owner's name is made of"),
        ("name", "ps0/x", "an owner's name is made of"),
        ("name", "ps0\n", "an owner's name is made of"),
        ("http", "9464", "'9464' is not HOST:PORT"),
        ("listen", "50051", "'50051' is not HOST:PORT"),
        ("listen", ":50051", "':50051' is not HOST:PORT"),
        ("listen", "localhost:", "'localhost:' is not HOST:PORT"),
        ("listen", "localhost:65536", "'localhost:65536' is not HOST:PORT"),
        ("listen", "localhost:http", "'localhost:http' is not HOST:PORT"),
        ("listen", "localhost:-1", "'localhost:-1' is not HOST:PORT"),
        ("directory", "ps0", "'ps0' is not HOST:PORT"),
        ("directory", "a=ps0:1,b=ps1:1,c=ps2", "'ps2' is not HOST:PORT"),
        ("advertise", "ps0", "'ps0' is not HOST:PORT"),
        ("directory", "127.0.0.1:1,127.0.0.1:2", "of two keepers none may fail"),
        ("direct_port", "65536", "'65536' is neither a port nor 'off'"),
        ("direct_port", "on", "'on' is neither a port nor 'off'"),
        ("device", "gpu7", "'gpu7' is not a device"),
        ("device", "", "'' is not a device"),
        ("threads", "-1", "greater than or equal to 0"),
        ("threads", "many", "valid integer"),
        ("torch_threads", "-1", "greater than or equal to 0"),
        ("max_message_bytes", "1000", "greater than or equal to 1048576"),
        ("max_in_flight", "0", "greater than or equal to 1"),
        ("max_session_bytes", "1000", "greater than or equal to 1048576"),
        ("max_owner_bytes", "1000", "greater than or equal to 1048576"),
        ("lease_seconds", "0", "greater than 0"),
        ("lease_seconds", "nan", "finite number"),
        ("max_context_seconds", "-1", "greater than or equal to 0"),
        ("max_context_seconds", "inf", "finite number"),
        ("lease_seconds", "inf", "finite number"),
        ("drain_seconds", "-0.5", "greater than or equal to 0"),
        ("drain_seconds", "inf", "finite number"),
        ("insecure", "perhaps", "valid boolean"),
        ("log_level", "loud", "'debug', 'info', 'warning' or 'error'"),
        ("log_format", "xml", "'auto', 'text' or 'json'"),
    ],
)
def test_a_bad_value_is_told_by_its_field(
    field: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable_of(field), value)
    with pytest.raises(pydantic.ValidationError) as caught:
        config.load()
    (error,) = caught.value.errors()
    assert error["loc"] == (field,)
    assert message in error["msg"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="here CUDA is there")
def test_cuda_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PS_DEVICE", "cuda:0")
    with pytest.raises(pydantic.ValidationError, match="torch finds no CUDA device"):
        config.load()


@pytest.mark.gpu
def test_cuda_is_taken_where_it_is() -> None:
    assert config.load(device="cuda:0").device == "cuda:0"


def test_a_key_that_is_not_known_is_refused(file: Path) -> None:
    file.write_text("thread = 3\n")
    with pytest.raises(pydantic.ValidationError) as caught:
        config.load(file)
    (error,) = caught.value.errors()
    assert error["loc"] == ("thread",)
    assert "not permitted" in error["msg"]


def test_several_bad_values_are_told_together(file: Path) -> None:
    file.write_text('threads = -1\nlog_level = "loud"\ncolour = "red"\n')
    with pytest.raises(pydantic.ValidationError) as caught:
        config.load(file)
    assert {error["loc"][0] for error in caught.value.errors()} == {"threads", "log_level", "colour"}


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no configuration file .*nothing\.toml"):
        config.load(tmp_path / "nothing.toml")
    with pytest.raises(FileNotFoundError, match="there is no configuration file"):
        config.load(tmp_path)


def test_a_file_that_is_not_toml_is_refused(file: Path) -> None:
    file.write_text("name: ps0\n")
    with pytest.raises(tomllib.TOMLDecodeError):
        config.load(file)


def test_a_configuration_does_not_change() -> None:
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        config.load().name = "ps1"  # type: ignore[misc]


def test_every_field_is_described() -> None:
    assert all(field.description for field in OwnerConfig.model_fields.values())


def test_the_example_file_holds_the_defaults() -> None:
    example = ROOT / "deploy" / "owner.toml"
    loaded = config.load(example)
    assert loaded.model_dump() == config.load().model_dump()
    assert tomllib.loads(example.read_text("utf-8")).keys() == {key_of(field) for field in FIELDS}


def test_a_certificate_without_its_key_is_refused() -> None:
    with pytest.raises(ValueError, match="give tls_cert and tls_key together"):
        _ = config.load(tls_cert=Path("a.pem")).serving
    with pytest.raises(ValueError, match="nothing is encrypted"):
        _ = config.load(tls_client_ca=Path("a.pem")).serving
    found = config.load(tls_cert=Path("a.pem"), tls_key=Path("a.key"), tls_client_ca=Path("ca.pem"))
    assert found.tls == ServerTLS(Path("a.pem"), Path("a.key"), Path("ca.pem"))
    assert found.peer_tls == TLS(Path("ca.pem"), Path("a.pem"), Path("a.key"))
