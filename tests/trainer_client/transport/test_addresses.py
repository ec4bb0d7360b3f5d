"""Tests of the addresses that `connect()` takes, and what it says of others."""

from __future__ import annotations

import pytest

import trainer_client as tc
from ps_wire.errors import InvalidArgumentError
from trainer_client.transport.channels import checked_address


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1:50051", "localhost:1", "ps0.cluster.local:65535", "my_service:50051", "[::1]:50051"),
        *("[fe80::1%eth0]:50051", "dns:///ps0:50051", "unix:/tmp/socket", "unix:///tmp/socket", "ipv4:127.0.0.1:50051"),
    ],
)
def test_addresses_of_owners(address: str) -> None:
    assert checked_address(address) == address


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1", "'127.0.0.1' is not the address of an owner: give host:port, as in '127.0.0.1:50051'"),
        ("localhost:", "as in 'localhost:50051'"),
        ("ps0:0", "as in 'ps0:50051'"),
        ("ps0:70000", "as in 'ps0:50051'"),
        (":50051", "as in '127.0.0.1:50051'"),
        ("", "as in '127.0.0.1:50051'"),
        ("ps0 :50051", "give host:port"),
        ("127.0.0.1:50051/", "give host:port"),
        ("ps0", "to find an owner by its name, add directory='host:port', as in connect('ps0', directory=...)"),
        (
            "http://127.0.0.1:9464/",
            "give host:port without http:// and a path, as in '127.0.0.1:9464'; the port is that",
        ),
        ("http://ps0", "as in 'ps0:50051'"),
        ("tcp://127.0.0.1:50051", "give host:port without tcp:// and a path, as in '127.0.0.1:50051'"),
        ("::1:50051", "put an IPv6 address in brackets, as in '[::1]:50051'"),
    ],
)
def test_what_is_no_address_is_refused_at_once(address: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        tc.connect(address)
    assert message in str(error.value)


def test_the_address_of_a_directory_is_checked_too() -> None:
    with pytest.raises(InvalidArgumentError, match="'ps0' is not the address of an owner"):
        tc.connect("ps1", directory="ps0")
