"""The configuration of an owner: from flags, else the environment, else a TOML file, else defaults."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, FiniteFloat, ValidationInfo, field_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from ps_service.group.keepers import KeeperAddress, keepers_of
from ps_service.group.static_members import STDIN
from ps_wire.limits import MIB
from ps_wire.tls import TLS, MinVersion, ServerTLS


class OwnerConfig(BaseSettings):
    """The settings of an owner.

    Each field is a flag of `ps-service serve` (`--max-in-flight`), a variable (`PS_MAX_IN_FLIGHT`) and a key of the
    TOML file (`max_in_flight`).
    """

    model_config = SettingsConfigDict(
        env_prefix="PS_",
        env_prefix_target="all",  # aliases have the prefix too: PS_IMPORT, never IMPORT
        extra="forbid",
        frozen=True,
        validate_by_name=True,
        validate_by_alias=True,
    )

    name: str = Field("ps0", description="Name of the owner, part of every handle to its objects.")
    listen: str = Field("127.0.0.1:50051", description="Host and port to listen on; port 0 takes a free one.")
    imports: Annotated[tuple[str, ...], NoDecode] = Field(
        (), alias="import", description="Modules whose @hosted classes trainers may create (separated by commas)."
    )
    directory: str = Field(
        "",
        description="Host and port of the owner that keeps the directory of the group; or of three or more that do, "
        "separated by commas, as HOST:PORT or NAME=HOST:PORT; or self; or stdin, where "
        "all members are told, and whose end is that of until_eof.",
    )
    advertise: str = Field("", description="Address under which the group reaches this owner, if not `listen`.")
    http: str = Field(
        "",
        description="Host and port of the page of the group, /metrics, /healthz and /readyz over HTTP; empty for none.",
    )
    data_dir: Path | None = Field(
        None,
        description="Folder of the log and the checkpoints, from which the owner goes on; empty for none.",
    )
    wait_for_data_dir: FiniteFloat = Field(
        0.0, ge=0, description="Seconds to wait for data_dir while another owner uses it, instead of ending at once."
    )
    checkpoint_every: FiniteFloat = Field(
        0.0, ge=0, description="Seconds between checkpoints in data_dir while it serves; 0: only when it drains."
    )
    durability: str = Field(
        "",
        description="What of acknowledged changes outlives a crash: always, interval:SECONDS or off. Empty: interval:1 "
        "with data_dir.",
    )
    log_bytes: int = Field(
        1024 * MIB, ge=MIB, description="Bytes of the log after which a checkpoint is written, so that it can be cut."
    )
    keep_checkpoints: int = Field(
        2, ge=1, description="How many checkpoints stay in data_dir; older ones are removed after a new one is whole."
    )
    checkpoint_key_file: Path | None = Field(
        None, description="Keys that sign checkpoints and the log: what is not signed with one of them is not loaded."
    )
    leave_out: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="Names or ids of objects in the checkpoint that are not to be restored (separated by commas)."
    )
    device: str = Field("cpu", description="Where hosted modules live: cpu, cuda:0 … Rows of tables stay on the CPU.")
    threads: int = Field(0, ge=0, description="Compute threads; 0 chooses by the number of cores.")
    spare_threads: int = Field(
        0, ge=0, description="Threads that replace those held by abandoned work; 0: as many as threads, at least 16."
    )
    torch_threads: int = Field(
        0,
        ge=0,
        description="Threads torch uses inside one operation; 0: cores / compute threads, or as OMP_NUM_THREADS says.",
    )
    share_cores: bool = Field(
        False, description="Long calls share all cores inside operations; last bits may differ from run to run."
    )
    max_message_bytes: int = Field(1024 * MIB, ge=MIB, description="Largest request or reply, in bytes of tensors.")
    max_in_flight: int = Field(1024, ge=1, description="Requests of one trainer that may run or wait at once.")
    max_session_bytes: int = Field(
        256 * MIB, ge=MIB, description="Bytes of one trainer's requests in flight, and as many of its answers."
    )
    max_owner_bytes: int = Field(2048 * MIB, ge=MIB, description="The same of all trainers together.")
    max_context_bytes: int = Field(
        0, ge=0, description="Bytes of one trainer's open contexts and kept results; 0 is half of the memory."
    )
    max_result_bytes: int = Field(
        1024 * MIB, ge=MIB, description="Largest result of a function or layer of torch that a trainer calls."
    )
    max_object_bytes: int = Field(
        0, ge=0, description="Largest module of torch that a trainer may make; 0 is half of the machine's memory."
    )
    max_table_bytes: int = Field(
        0, ge=0, description="Bytes of all tables together; 0 is three quarters of the machine's memory."
    )
    compile_tables: bool = Field(
        True, description="Compile the loops of tables at the start, once on a machine, in a process beside the owner."
    )
    torch_functions: Literal["off", "basic", "all"] = Field(
        "basic", description="Functions of torch that trainers may call by name: docs/torch-functions.md lists them."
    )
    lease_seconds: FiniteFloat = Field(30.0, gt=0, description="How long a session outlives its broken stream.")
    # A trainer's own work between two calls of a pass takes far less. A pass left open for an hour (in a notebook, by a
    # program that hangs) holds the memory of its graphs for nothing.
    max_context_seconds: FiniteFloat = Field(
        3600.0, ge=0, description="How long a pass may stay open unused before the owner ends it; 0 for no limit."
    )
    # Kubernetes kills thirty seconds after SIGTERM: the rest is for writing the checkpoint and stopping.
    drain_seconds: FiniteFloat = Field(20.0, ge=0, description="How long SIGTERM waits for work in flight.")
    until_eof: bool = Field(
        False, description="Drain when standard input ends, as it does with the process that started the owner."
    )
    direct_port: int | Literal["off"] = Field(
        0, description="Port for direct connections, which are faster than gRPC; 0 takes a free one; or off."
    )
    shared_memory: bool = Field(True, description="Offer trainers of this host a shared-memory connection beside gRPC.")
    tls_cert: Path | None = Field(None, description="Certificate of the owner (PEM, with its chain): serves over TLS.")
    tls_key: Path | None = Field(None, description="Private key of tls_cert (PEM, without a password).")
    tls_client_ca: Path | None = Field(
        None, description="Authorities (PEM), one of which must have signed the certificate of each trainer and owner."
    )
    tls_ca: Path | None = Field(
        None, description="Authorities (PEM) of the other owners of the group; empty: tls_client_ca, or the system's."
    )
    tls_min_version: MinVersion = Field("1.3", description="Oldest version of TLS that is spoken: 1.3, or 1.2.")
    token_file: Path | None = Field(
        None,
        description="File with identities, their roles and the hashes of their tokens, as ps-service token writes it; "
        "empty: everybody may do everything.",
    )
    own_token_file: Path | None = Field(
        None, description="File with the token that this owner shows the others of its group; it needs the role owner."
    )
    quota_file: Path | None = Field(
        None,
        description="TOML file that says how much each identity, each namespace and all together may use; empty: no "
        "quotas.",
    )
    insecure: bool = Field(False, description="Listen beyond loopback although traffic is not encrypted.")
    slow_call_seconds: FiniteFloat = Field(
        10.0, ge=0, description="Calls, backwards and steps that take longer are logged; 0 logs none."
    )
    audit_log: str = Field(
        "",
        description="File for lines of JSON that say who came, was refused, and made or changed what; - for standard "
        "output; empty for none.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="How much to log.")
    reload: bool = Field(
        False,
        description="For development: start again when a file of the modules of import has changed. Without data_dir "
        "all objects are lost then.",
    )
    log_format: Literal["auto", "text", "json"] = Field("auto", description="auto: text in a terminal, else JSON.")

    @property
    def serving(self) -> dict[str, Any]:
        """The settings that are arguments of `Server`, by their names there."""
        found = self.model_dump(
            include={
                *("listen", "insecure", "http", "direct_port"),
                *("checkpoint_every", "keep_checkpoints", "leave_out", "durability", "log_bytes"),
                *("wait_for_data_dir", "checkpoint_key_file"),
            }
        )
        return found | {"tls": self.tls}

    @property
    def tls(self) -> ServerTLS | None:
        """The certificates with which the owner serves; None if it does not over TLS. Raises `ValueError` if some are
        missing."""
        if self.tls_cert is None or self.tls_key is None:
            if self.tls_cert or self.tls_key or self.tls_client_ca or self.tls_ca:
                raise ValueError("give tls_cert and tls_key together: without them nothing is encrypted")
            return None
        return ServerTLS(self.tls_cert, self.tls_key, self.tls_client_ca, self.tls_min_version)

    @property
    def peer_tls(self) -> TLS | None:
        """The certificates with which it reaches the other owners of its group."""
        return None if self.tls is None else TLS(self.tls_ca or self.tls_client_ca, self.tls_cert, self.tls_key)

    @property
    def keepers(self) -> tuple[KeeperAddress, ...]:
        """The owners that keep the directory, if there are several."""
        return keepers_of(self.directory)

    @property
    def is_told(self) -> bool:
        """Whether the members of the group come on standard input."""
        return self.directory == STDIN

    @field_validator("imports", "leave_out", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        entries = [value] if isinstance(value, str) else value
        if not isinstance(entries, (list, tuple)) or not all(isinstance(entry, str) for entry in entries):
            return value
        return tuple(part.strip() for entry in entries for part in entry.split(",") if part.strip())

    @field_validator("direct_port", mode="before")
    @classmethod
    def _check_port(cls, value: Any) -> Any:
        text = str(value)
        if text != "off" and not (text.isdecimal() and int(text) <= 65535):
            raise ValueError(f"{value!r} is neither a port nor 'off'")
        return value

    @field_validator("directory")
    @classmethod
    def _check_directory(cls, value: str) -> str:
        keepers = [each.address for each in keepers_of(value)]
        for address in keepers or [value]:
            if address not in ("", "self", STDIN):
                check_host_port(address)
        return value

    @field_validator(
        *("data_dir", "checkpoint_key_file", "tls_cert", "tls_key", "tls_client_ca", "tls_ca"),
        *("token_file", "own_token_file", "quota_file"),
        mode="before",
    )
    @classmethod
    def _none_if_empty(cls, value: Any) -> Any:
        return value or None

    @field_validator("name")
    @classmethod
    def _check_name(cls, value: str) -> str:
        if not re.fullmatch(r"[\w.-]{1,127}", value):
            raise ValueError("an owner's name is made of letters, digits, '_', '.' and '-', and shorter than 128")
        return value

    @field_validator("device")
    @classmethod
    def _check_device(cls, value: str) -> str:
        import torch  # here, so that commands which only read a configuration answer at once

        try:
            device = torch.device(value)
        except RuntimeError as error:
            raise ValueError(f"{value!r} is not a device") from error
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"{value!r} was requested, but torch finds no CUDA device")
        return value

    @field_validator("listen", "http", "advertise")
    @classmethod
    def _check_address(cls, value: str, info: ValidationInfo) -> str:
        if info.field_name != "listen" and not value:
            return value
        check_host_port(value)
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


def check_host_port(value: str) -> None:
    """Raises `ValueError` if a value is not the host and port of an owner."""
    host, _, port = value.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{value!r} is not HOST:PORT")


def load(file: Path | None = None, **flags: Any) -> OwnerConfig:
    """Merges flags, environment and a TOML file into a configuration. A flag that is None or an empty list is not set.

    Raises `pydantic.ValidationError` if a value is not valid, `FileNotFoundError`, or `tomllib.TOMLDecodeError`.
    """
    given = {name: value for name, value in flags.items() if value is not None and value != []}
    if file is None:
        return OwnerConfig(**given)
    if not file.is_file():
        raise FileNotFoundError(f"there is no configuration file {file}")

    class FromFile(OwnerConfig):
        model_config = SettingsConfigDict(toml_file=file)

    return FromFile(**given)
