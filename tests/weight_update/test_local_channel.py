"""The channel of a scheme on this machine: what is left of it, and who may read it."""

import gc
import threading
from pathlib import Path

import pytest
import torch

from swath.weight_update import local_channel
from swath.weight_update.local_channel import LocalAddress, LocalChannel
from swath.weight_update.mail import EVERYONE
from swath.weights.manifest import Manifest
from swath.weights.snapshot import take


def snapshot(value, size=4):
    weights = {"w": torch.full((size,), float(value))}
    return take(weights, Manifest.of_weights(weights))


def value_of(letter):
    return letter.snapshot.tensors()["w"][0].item()


def threads():
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("swath-weights")}


def descriptors():
    return set(Path("/proc/self/fd").iterdir()) if Path("/proc/self/fd").exists() else set()


@pytest.fixture
def channel():
    made = LocalChannel()
    yield made
    made.close()


@pytest.mark.parametrize("size", [4, 1_000_000], ids=["small", "large"])
def test_readers_get_the_newest_that_they_have_not_seen(channel, size):
    reader = channel.address.reader()
    assert reader.newest(EVERYONE, 0, 0) is None
    channel.put({EVERYONE: snapshot(1, size)})
    channel.put({EVERYONE: snapshot(2, size)})
    letter = reader.newest(EVERYONE, 0, 0)
    assert (letter.serial, value_of(letter)) == (2, 2)
    assert reader.newest(EVERYONE, letter.serial, 0) is None
    reader.close()


def test_memory_that_was_handed_out_is_never_written_again(channel):
    reader = channel.address.reader()
    channel.put({EVERYONE: snapshot(1, 1_000_000)})
    held = reader.newest(EVERYONE, 0, 0)
    for value in range(2, 8):
        channel.put({EVERYONE: snapshot(value, 1_000_000)})
    assert held.snapshot.tensors()["w"].unique().tolist() == [1]
    reader.close()


def test_old_weights_take_no_memory_when_nobody_reads_them(channel):
    channel.put({EVERYONE: snapshot(0, 1_000_000)})
    before = len(descriptors())
    for value in range(5):
        channel.put({EVERYONE: snapshot(value, 1_000_000)})
        channel.put({0: snapshot(value, 1_000_000)})
    assert len(descriptors()) <= before + 1


def test_workers_have_weights_of_their_own_until_there_are_some_for_all(channel):
    reader = channel.address.reader()
    channel.put({EVERYONE: snapshot(1), 3: snapshot(2)})
    assert [value_of(reader.newest(who, 0, 0)) for who in (EVERYONE, 0, 3)] == [1, 1, 2]
    channel.put({EVERYONE: snapshot(4)})
    assert [value_of(reader.newest(who, 0, 0)) for who in (EVERYONE, 0, 3)] == [4, 4, 4]
    reader.close()


def test_a_stranger_without_the_key_gets_nothing(channel):
    channel.put({EVERYONE: snapshot(1)})
    stranger = LocalAddress(channel.address.name, b"0" * 32).reader()
    with pytest.raises(RuntimeError, match="cannot be reached"):
        stranger.newest(EVERYONE, 0, 0)
    assert "key" not in repr(channel.address)


def test_what_is_no_question_ends_its_connection_alone(channel):
    channel.put({EVERYONE: snapshot(1)})
    stranger, reader = channel.address.reader(), channel.address.reader()
    assert value_of(stranger.newest(EVERYONE, 0, 0)) == 1
    stranger._wire.send(b"what?")
    with pytest.raises(RuntimeError, match="cannot be reached"):
        stranger.newest(EVERYONE, 0, 0)
    assert value_of(stranger.newest(EVERYONE, 0, 0)) == 1, "it connects anew"
    assert value_of(reader.newest(EVERYONE, 0, 0)) == 1
    for one in (stranger, reader):
        one.close()


def test_closing_leaves_nothing_and_ends_who_waits(channel):
    before, reader = threads(), channel.address.reader()
    outcome = []

    def wait():
        try:
            reader.newest(EVERYONE, 0, 60)
        except RuntimeError as error:
            outcome.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    channel.put({0: snapshot(1)})  # not for this reader
    channel.close()
    channel.close()
    waiting.join(60)
    assert not waiting.is_alive()
    assert threads() <= before - {"swath-weights"}
    with pytest.raises(RuntimeError, match="was shut down"):
        channel.put({EVERYONE: snapshot(1)})


def test_a_channel_that_is_forgotten_closes():
    made = LocalChannel()
    reader = made.address.reader()
    del made
    gc.collect()
    with pytest.raises(RuntimeError, match="cannot be reached"):
        reader.newest(EVERYONE, 0, 0)
    assert not threads()


def test_where_sockets_need_files_the_file_goes_too(monkeypatch):
    monkeypatch.setattr(local_channel, "_NAMELESS", False)
    made = LocalChannel()
    made.put({EVERYONE: snapshot(3)})
    path, reader = Path(made.address.name), made.address.reader()
    assert path.exists()
    assert value_of(reader.newest(EVERYONE, 0, 0)) == 3
    made.close()
    assert not path.parent.exists()
    reader.close()
