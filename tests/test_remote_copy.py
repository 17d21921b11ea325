"""Copies of stores into object storage: closed ones, whole and in part, interrupted and resumed."""

from __future__ import annotations

import random
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyarrow.fs import FileSelector, FileType, LocalFileSystem, SubTreeFileSystem

import goldens
import rmqstore
import tiers
from command_line import success
from crash.faults import Cut
from reading import read
from rmqstore.copying import copier, remote_copier
from rmqstore.copying.copier import copy
from rmqstore.errors import OptionError, StoreStateError, UnsupportedFeatureError
from rmqstore.inspect.verify import verify
from rmqstore.storage.files.paths import UNFINISHED_COPY
from rmqstore.storage.files.remote_storage import RemoteFolder
from s3_server import BUCKET, S3Server
from test_copy import CLOSED, OWN, SIZES, closed_store, contents, messages, rows
from tiers import spread


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return closed_store(tmp_path / "store")


def objects(s3: S3Server, uri: str) -> dict[str, bytes]:
    key = uri.removeprefix("s3://")
    infos = s3.filesystem.get_file_info(FileSelector(key, recursive=True, allow_not_found=True))
    found = {}
    for info in infos:
        if info.type is FileType.File:
            with s3.filesystem.open_input_stream(info.path) as stream:
                found[info.path.removeprefix(f"{key}/")] = stream.read()
    return found


class Faults:
    """Interrupts a copy at one of its changes to the target."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = -1
        self.written: list[str] = []
        write, delete = RemoteFolder.write, RemoteFolder.delete

        def cut_write(folder: RemoteFolder, name: str, pieces: Any) -> None:
            if self._is_last():
                content = b"".join(bytes(piece) for piece in pieces())
                write(folder, name, lambda: iter([content[: len(content) // 2]]))
                raise Cut(name)
            self.written.append(name)
            write(folder, name, pieces)

        def cut_delete(folder: RemoteFolder, name: str) -> None:
            if self._is_last():
                raise Cut(name)
            delete(folder, name)

        monkeypatch.setattr(RemoteFolder, "write", cut_write)
        monkeypatch.setattr(RemoteFolder, "delete", cut_delete)

    def cut(self, at: int, *arguments: Any, **options: Any) -> None:
        """Begin a copy that is interrupted at a change; the next one is not."""
        self.left = at
        with pytest.raises(Cut):
            copy(*arguments, **options)
        self.left = -1

    def _is_last(self) -> bool:
        self.left -= 1
        return self.left == 0


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(monkeypatch)


@pytest.mark.parametrize("name", spread(16, CLOSED))
def test_the_copy_of_a_closed_store_equals_it(
    name: str, tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_copier, "_CHUNK_BYTES", 100_001)  # files have several, and a rest
    source, uri = goldens.unpack(name, tmp_path), f"s3://{BUCKET}/copies/{name}"
    copied = copy(source, uri, target_options=s3.options)
    with rmqstore.open(source) as store:
        found = [(one.part, one.place.replace(str(source), uri)) for one in verify(store)]
    assert [(one.part, one.place) for one in copied.findings] == found
    stored = objects(s3, uri)
    assert {name: stored[name] for name in stored if name not in OWN} == contents(source)


def test_a_copy_in_s3_is_copied_back(root: Path, tmp_path: Path, s3: S3Server) -> None:
    uri = f"s3://{BUCKET}/there-and-back"
    steps: list[tuple[int, int]] = []
    copy(root, uri, target_options=s3.options, progress=lambda *step: steps.append(step))
    assert steps[-1][0] == steps[-1][1]
    copy(uri, f"{uri}-again", storage_options=s3.options, target_options=s3.options)
    copy(f"{uri}-again", tmp_path / "back", storage_options=s3.options)
    assert contents(tmp_path / "back") == contents(root)


@pytest.mark.parametrize("seed", tiers.seeds(12))
def test_a_copy_that_was_cut_is_no_store_until_it_goes_on(
    root: Path, s3: S3Server, faults: Faults, seed: int
) -> None:
    uri = f"s3://{BUCKET}/cut-{seed}"
    chosen, is_complete = random.Random(seed), False
    for most in (55, 20, 5, 0):
        faults.left = chosen.randint(1, most) if most else -1
        with suppress(Cut):
            assert copy(root, uri, target_options=s3.options).findings == ()
            is_complete = True
            break
        with pytest.raises(StoreStateError, match="`rmqstore copy` with the same arguments"):
            rmqstore.open(uri, storage_options=s3.options)
    assert is_complete
    assert objects(s3, uri) == contents(root)
    with rmqstore.open(uri, storage_options=s3.options) as store:
        assert [row["keys"] for row in read(store)] == [row["keys"] for row in messages(root)]


def test_what_was_copied_is_not_copied_again(
    root: Path, s3: S3Server, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_copier, "NOTED_FILES", 4)
    uri = f"s3://{BUCKET}/not-again"
    faults.cut(30, root, uri, target_options=s3.options)
    before = {name for name in faults.written if not name.startswith(".rmqstore")}
    faults.written = []
    copy(root, uri, target_options=s3.options)
    again = before & set(faults.written)
    assert len(before) > 15
    assert len(again) < 8


def test_an_old_marker_of_another_copy_is_refused(root: Path, s3: S3Server) -> None:
    uri = f"s3://{BUCKET}/of-another"
    s3.put(f"{BUCKET}/of-another/{UNFINISHED_COPY}", b'{"source": "other"}')
    with pytest.raises(StoreStateError, match="holds an unfinished copy of"):
        copy(root, uri, target_options=s3.options)
    with pytest.raises(StoreStateError, match="exists already"):
        copy(root, s3.upload(root, "is-there"), target_options=s3.options)


def other_files(tmp_path: Path) -> tuple[Path, SubTreeFileSystem]:
    """Return a folder, and a file system that has it as its root."""
    (tmp_path / "other").mkdir()
    return tmp_path / "other", SubTreeFileSystem(str(tmp_path / "other"), LocalFileSystem())


def test_notes_that_were_cut_are_written_again(
    root: Path, tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, files = other_files(tmp_path)
    faults.cut(1, root, "copy", target_filesystem=files)
    monkeypatch.setattr(remote_copier, "NOTED_FILES", 4)
    faults.cut(20, root, "copy", target_filesystem=files)
    notes = sorted((folder / "copy/.rmqstore/copying").glob("0*"))
    notes[-1].write_bytes(notes[-1].read_bytes()[:-10])
    assert copy(root, "copy", target_filesystem=files).findings == ()
    assert contents(folder / "copy") == contents(root)


@pytest.mark.parametrize("at", [20, 30])
def test_of_two_copies_at_once_one_goes_on(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    monkeypatch.setattr(remote_copier, "NOTED_FILES", 4)
    _, files = other_files(tmp_path)
    with rmqstore.create(tmp_path / "second", config=SIZES) as writer:
        writer.append(rows(30, "V"))
    begin, write, numbers = RemoteFolder.sizes, RemoteFolder.write, count(1)

    def write_beside(target: RemoteFolder, name: str, pieces: Any) -> None:
        number = next(numbers)
        write(target, name, pieces)
        if number == at:
            with monkeypatch.context() as patched:  # the second one saw the folder empty too
                first = [{}, begin(target)]
                patched.setattr(
                    RemoteFolder, "sizes", lambda one: first.pop(0) if first[:-1] else begin(one)
                )
                with suppress(StoreStateError):
                    copy(tmp_path / "second", "copy", target_filesystem=files)

    monkeypatch.setattr(RemoteFolder, "write", write_beside)
    with pytest.raises(StoreStateError, match=r"another copy into .* has begun"):
        copy(root, "copy", target_filesystem=files, verify=False)
    with pytest.raises(StoreStateError, match="not complete"):
        rmqstore.open("copy", filesystem=files)


def test_what_others_put_beside_a_copy_does_not_become_a_part_of_it(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, files = other_files(tmp_path)
    check = remote_copier.RemoteCopier._check

    def foreign(copier: remote_copier.RemoteCopier) -> Any:
        (folder / "copy/commitlog/00000000009999999999").write_bytes(b"foreign")
        return check(copier)

    with monkeypatch.context() as patched:
        patched.setattr(remote_copier.RemoteCopier, "_check", foreign)
        with pytest.raises(StoreStateError, match="00000000009999999999 was written"):
            copy(root, "copy", target_filesystem=files)
    with pytest.raises(StoreStateError, match="not complete"):
        rmqstore.open("copy", filesystem=files)
    assert copy(root, "copy", target_filesystem=files).findings == ()
    assert contents(folder / "copy") == contents(root)


def test_a_file_that_went_while_it_was_copied_leaves_no_part_of_it(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, files = other_files(tmp_path)
    victim = next((root / "index").iterdir())
    write = RemoteFolder.write

    def deleted(target: RemoteFolder, name: str, pieces: Any) -> None:
        if name == f"index/{victim.name}" and victim.exists():
            victim.unlink()
            write(target, name, lambda: iter([b"a part"]))
            raise FileNotFoundError(victim)
        write(target, name, pieces)

    monkeypatch.setattr(RemoteFolder, "write", deleted)
    copy(root, "copies/of-it", target_filesystem=files, verify=False)
    assert contents(folder / "copies" / "of-it") == contents(root)


def test_a_copy_since_a_time_before_now_goes_on_later(
    root: Path, tmp_path: Path, s3: S3Server, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"s3://{BUCKET}/relative"
    faults.cut(10, root, uri, since="-7d", target_options=s3.options)
    assert copy(root, uri, since="-7d", target_options=s3.options).findings == ()
    with monkeypatch.context() as patched:
        patched.setattr(copier._Copier, "run", lambda *_: pytest.fail("stopped"))
        with pytest.raises(pytest.fail.Exception):
            copy(root, tmp_path / "copy", since="-7d")
    assert copy(root, tmp_path / "copy", since="-7d").findings == ()


def test_a_store_that_is_open_is_not_copied_there(root: Path, s3: S3Server) -> None:
    uri = f"s3://{BUCKET}/of-an-open-store"
    with (
        rmqstore.open(root, "a"),
        pytest.raises(UnsupportedFeatureError, match="Copy it to a local folder"),
    ):
        copy(root, uri, target_options=s3.options)
    assert objects(s3, uri) == {}


def test_a_copy_does_not_grow_in_its_source(root: Path, s3: S3Server) -> None:
    uri = s3.upload(root, "a-source")
    with pytest.raises(StoreStateError, match="choose another target"):
        copy(uri, f"{uri}/copy", storage_options=s3.options, target_options=s3.options)
    with pytest.raises(StoreStateError, match="choose another target"):
        copy(root, root / "config" / "copy", target_filesystem=LocalFileSystem())
    assert not (root / "config" / "copy").exists()


def test_topics_and_old_files_are_left_out(root: Path, s3: S3Server) -> None:
    uri = f"s3://{BUCKET}/of-one-topic"
    copied = copy(root, uri, topics="U", target_options=s3.options)
    assert copied.findings == ()
    assert any("the queues of 1 topics" in text for text in copied.left_out)
    assert b'"T"' not in objects(s3, uri)["config/topics.json"]
    with rmqstore.open(uri, storage_options=s3.options) as store:
        assert store.topics() == ["U"]
        assert store.count() == 60
    with pytest.raises(OptionError, match="does not have the topic"):
        copy(root, f"{uri}-2", topics="V", target_options=s3.options)


def test_the_command_line_copies_to_a_uri(root: Path, s3: S3Server) -> None:
    uri = f"s3://{BUCKET}/by-command"
    options = [f"--target-option={name}={value}" for name, value in s3.options.items()]
    assert "0 findings" in success("copy", root, uri, *options).output
    assert objects(s3, uri) == contents(root)
