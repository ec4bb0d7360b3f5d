"""Tests that handles are parsed from their text exactly, and that other texts are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps_wire.errors import InvalidArgumentError
from ps_wire.refs import ContextId, Ref, new_object_id, new_trainer_id

OBJECT_ID = "0123456789abcdef" * 2
owners = st.from_regex(r"[\w.-]+", fullmatch=True)
object_ids = st.text("0123456789abcdef", min_size=32, max_size=32)


@given(owners, object_ids, st.text(st.characters(codec="utf-8")))
def test_a_handle_reads_back_from_its_text_and_its_message(owner: str, object_id: str, parameter: str) -> None:
    ref = Ref(owner, object_id, parameter)
    assert Ref.parse(str(ref)) == ref
    assert Ref.from_message(ref.to_message()) == ref


def test_the_text_of_a_handle() -> None:
    assert str(Ref("ps0", OBJECT_ID)) == f"ps://ps0/{OBJECT_ID}"
    assert Ref.parse(f"a description (ps://x) (ps://ps0/{OBJECT_ID})") == Ref("ps0", OBJECT_ID)
    assert str(Ref("ps0", OBJECT_ID, "layers.0.weight")) == f"ps://ps0/{OBJECT_ID}#layers.0.weight"


@pytest.mark.parametrize("name", ["user/emb-1", "a b", "x#y", "größe", "line\nbreak"])
def test_a_parameter_may_have_any_name_that_torch_allows(name: str) -> None:
    ref = Ref("ps0", OBJECT_ID, name)
    assert Ref.parse(str(ref)) == ref


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ps0",
        f"ps0/{OBJECT_ID}",
        f"ps:/ps0/{OBJECT_ID}",
        f"http://ps0/{OBJECT_ID}",
        f"ps:///{OBJECT_ID}",
        f"ps://a b/{OBJECT_ID}",
        f"ps://ps0/{OBJECT_ID[:-1]}",
        f"ps://ps0/{OBJECT_ID}0",
        f"ps://ps0/{OBJECT_ID.upper()}",
        f"ps://ps0/x/{OBJECT_ID}",
        f"ps://ps0/{OBJECT_ID}#",
        f"ps://ps0/{OBJECT_ID}\n",
        f" ps://ps0/{OBJECT_ID}",
        f"ps://ps0/{OBJECT_ID}.weight",
    ],
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a handle"):
        Ref.parse(text)


def test_a_context_is_named_by_its_trainer_and_a_number() -> None:
    context = ContextId(new_trainer_id(), 7)
    assert ContextId.from_message(context.to_message()) == context
    assert str(context) == f"{context.trainer.hex()[:8]}/7"


def test_ids_do_not_repeat() -> None:
    object_ids, trainers = {new_object_id() for _ in range(1000)}, {new_trainer_id() for _ in range(1000)}
    assert len(object_ids) == len(trainers) == 1000
    assert all(Ref.parse(str(Ref("ps0", object_id))).object_id == object_id for object_id in object_ids)
    assert {len(trainer) for trainer in trainers} == {16}
