"""Tests that an argument of a wrong type is named, with what it should be, instead of an error from the inside."""

from __future__ import annotations

from typing import Any

import pytest

import trainer_client as tc

ADDRESS = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tls": "ca.pem"}, r"tls is tc\.TLS\(ca=…, cert=…, key=…\), not 'ca\.pem'"),
        ({"tls": True}, "tls is .*, not True"),
        ({"namespace": 3}, "namespace is a text, not 3"),
        ({"token": 3}, "token= is a text, or the Path of a file, not a int"),
        ({"on_state": "print"}, "on_state is a function that takes a state, not 'print'"),
        ({"seed": "a"}, "a seed is a whole number, not 'a'"),
        ({"directory": 50051}, "directory= is the address of an owner, several in a list, or a function, not 50051"),
        ({"directory": [None]}, r"directory= is .*, not \[None\]"),
    ],
    ids=str,
)
def test_connect_names_it_at_once(given: dict[str, Any], message: str) -> None:
    with pytest.raises(tc.errors.InvalidArgumentError, match=message):
        tc.connect(*(() if "directory" in given else (ADDRESS,)), **given)
