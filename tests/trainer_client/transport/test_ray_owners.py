"""Tests of `directory="ray:NAME"` where no Ray is: tests/ray has those with one."""

from __future__ import annotations

import sys

import pytest

import trainer_client as tc
from trainer_client.transport.ray_owners import on_ray


@pytest.mark.parametrize("directory", ["ray:50051", "ray.cluster:50051", "10.0.0.1:50051", ["ray:ps"], lambda _: ""])
def test_what_is_an_address_or_a_function_is_not_taken_for_a_cluster(directory: object) -> None:
    assert on_ray(directory) is None


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(tc.errors.InvalidArgumentError, match=r"pip install 'torch-parameter-server\[ray\]'"):
        tc.connect(directory="ray:ps")


def test_the_address_of_rays_own_client_is_refused() -> None:
    with pytest.raises(tc.errors.InvalidArgumentError, match="'ray://head:10001' is not the address of an owner"):
        tc.connect(directory="ray://head:10001")
