"""Tests the file through which members find the directory of their group."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ps_wire.errors import InvalidArgumentError, UnavailableError
from tests.forked_child import forked_child
from trainer_client.rpc.planning import Meeting, MeetingFile, planned


def taken(path: Path, world_size: int, address: str = "here:1") -> MeetingFile:
    file = MeetingFile(str(path))
    file.take(world_size)
    file.publish(address, world_size)
    return file


def test_one_process_keeps_the_directory_and_others_find_it(tmp_path: Path) -> None:
    path = tmp_path / "group"
    other = MeetingFile(str(path))
    assert other.read(3) is None
    keeper = taken(path, 3)
    assert keeper.taken
    other.take(3)
    assert not other.taken
    assert other.read(3) == Meeting("here:1", 3, there=True)
    keeper.leave(over=True)
    assert other.read(3) is None and not list(tmp_path.iterdir())


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    """Its parent may be killed, which closes its descriptor as here."""
    keeper = taken(tmp_path / "group", 0)
    with forked_child():
        keeper.leave(over=False)
        found = MeetingFile(str(tmp_path / "group")).read(0)
    assert found == Meeting("here:1", 0, there=False)


@pytest.mark.parametrize("keeps", [False, True])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, keeps: bool) -> None:
    os.mkfifo(tmp_path / "group.rpc")
    file = MeetingFile(str(tmp_path / "group"))
    with pytest.raises(InvalidArgumentError, match=r"group\.rpc is a FIFO, and not a file"):
        file.take(3) if keeps else file.read(3)
    assert not file.taken


def test_the_file_of_an_earlier_run_is_taken_over_by_a_group_that_begins_as_a_whole(tmp_path: Path) -> None:
    taken(tmp_path / "group", 3).leave(over=False)
    assert MeetingFile(str(tmp_path / "group")).read(3) == Meeting("here:1", 3, there=False)
    again = taken(tmp_path / "group", 2, "there:2")
    assert again.read(2) == Meeting("there:2", 2, there=True)
    again.leave(over=True)


def test_an_open_group_does_not_begin_anew_while_members_may_be_left(tmp_path: Path) -> None:
    taken(tmp_path / "group", 0).leave(over=False)
    late = MeetingFile(str(tmp_path / "group"))
    with pytest.raises(UnavailableError, match=r"at here:1, has gone, and others may be left; remove .*group\.rpc"):
        late.take(0)
    assert not late.taken


@pytest.mark.parametrize(("first", "second"), [(3, 0), (0, 3)])
@pytest.mark.parametrize("there", [True, False])
def test_open_groups_and_others_do_not_mix(tmp_path: Path, first: int, second: int, there: bool) -> None:
    keeper = taken(tmp_path / "group", first)
    if not there:
        keeper.leave(over=False)
    with pytest.raises(InvalidArgumentError, match="mixes statically and dynamically initialized members"):
        MeetingFile(str(tmp_path / "group")).read(second)
    keeper.leave(over=True)


def test_a_file_that_was_removed_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late = MeetingFile(str(tmp_path / "group"))
    with monkeypatch.context() as patch:
        # As when the file is removed between opening and locking it.
        patch.setattr("fcntl.flock", lambda *_: late.path.unlink())
        late.take(3)
    assert not late.taken


@pytest.mark.parametrize("method", ["file://", "file:///", "file://host/path", "file:///no/such/directory/file"])
def test_what_names_no_file_is_refused(method: str) -> None:
    with pytest.raises(InvalidArgumentError, match="names"):
        MeetingFile.of(method)


def test_the_file_stands_beside_the_path(tmp_path: Path) -> None:
    given = tmp_path / "a file"
    given.write_text("of the program")
    assert MeetingFile.of("tcp://127.0.0.1:1") is None
    file = MeetingFile.of(f"file://{str(given).replace(' ', '%20')}")
    assert str(file) == f"{given}.rpc"
    assert file is not None
    file.take(3)
    file.publish("here:1", 3)
    file.leave(over=True)
    assert [path.name for path in tmp_path.iterdir()] == ["a file"] and given.read_text() == "of the program"


def test_rank_0_keeps_the_directory_and_may_choose_where_it_listens(tmp_path: Path) -> None:
    method = f"file://{tmp_path}/group"
    plan, listen = planned(method, 0, 2, "", "10.0.0.1:7", 1.0)
    assert plan.keeps_directory and plan.file is not None and listen == "10.0.0.1:7"
    assert not planned(method, 1, 2, "", "", 1.0)[0].keeps_directory
    plan.file.leave(over=True)
    with pytest.raises(InvalidArgumentError, match=r"using file:// rendezvous: rank parameter missing"):
        planned(method, -1, 2, "", "", 1.0)
