"""A group of one, whose member is called in the thread that waits."""

import pytest

from swath.errors import Closed
from swath.group.gate import Gate
from swath.group.group import Call, WorkerGroup
from swath.group.local import LocalChannel, LocalFleet


class Only:
    """A member that does what it is asked to do."""

    def __init__(self):
        self.models, self.version, self.closed = {}, 0, 0

    def take(self, models, version):
        self.models |= models
        self.version = version

    def collect(self, do):
        return do()

    def close(self):
        self.closed += 1


@pytest.fixture
def gate():
    return Gate("Toy")


@pytest.fixture
def group(gate):
    member = Only()
    return WorkerGroup(LocalFleet(member, gate), LocalChannel(member, gate))


def member_of(group):
    return group.fleet.member


def reply_of(group, do):
    request = group.request(0, "collect", do)
    group.wait([request], lambda: False, group.news)
    assert group.settle(request)
    return request.reply


def test_a_request_is_carried_out_by_who_waits_and_gives_the_object_itself(group):
    made = object()
    assert reply_of(group, lambda: made) is made


def test_an_exception_is_the_object_itself(group):
    wrong = ArithmeticError("wrong")

    def fails():
        raise wrong

    with pytest.raises(ArithmeticError) as caught:
        reply_of(group, fails)
    assert caught.value is wrong
    assert not group.out


def test_a_request_that_ctrl_c_broke_off_is_carried_out_the_next_time(group):
    attempts = []

    def broken_off():
        attempts.append(1)
        if len(attempts) == 1:
            raise KeyboardInterrupt
        return "made"

    request = group.request(0, "collect", broken_off)
    with pytest.raises(KeyboardInterrupt):
        group.wait([request], lambda: False, group.news)
    group.wait([request], lambda: False, group.news)
    assert group.settle(request)
    assert request.reply == "made"


def test_weights_are_there_at_once_or_after_the_request_that_is_carried_out(group):
    member = member_of(group)
    assert group.channel.publish({"policy": 1}) == 1
    assert (member.models, member.version) == ({"policy": 1}, 1)

    def publishes():
        group.channel.publish({"policy": 2, "other": 5})
        group.channel.publish({"policy": 3, "gone": None})
        return dict(member.models), member.version

    assert reply_of(group, publishes) == ({"policy": 1}, 1)
    assert (member.models, member.version) == ({"policy": 3, "other": 5}, 3)


def test_a_call_comes_between_two_requests_and_not_within_one(group):
    member = member_of(group)
    member.state = lambda: "state"
    assert group.answers(group.send({0: Call("state")})) == {0: "state"}

    def calls():
        with pytest.raises(RuntimeError, match="cannot run inside its own fragment"):
            group.send({0: Call("state")})

    reply_of(group, lambda: calls() or "made")


def test_after_the_end_nothing_is_asked_or_published(group, gate):
    gate.close(1.0, lambda: group.fleet.close(1.0))
    assert member_of(group).closed == 1
    with pytest.raises(Closed):
        group.channel.publish({"policy": 1})
    with pytest.raises(Closed):
        group.send({0: Call("state")})
    request = group.request(0, "collect", lambda: "made")
    with pytest.raises(Closed):
        group.wait([request], lambda: False, group.news)


def test_what_closing_raises_is_handed_back(group):
    def close():
        raise OSError("it is stuck")

    member_of(group).close = close
    assert [str(error) for error in group.fleet.close(1.0)] == ["it is stuck"]
    assert group.fleet.close(1.0, ask=False) == []
