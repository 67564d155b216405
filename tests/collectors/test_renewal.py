"""When weights are published without being told to."""

import pytest

from swath.collectors.plan import Automatic, Renewal

RULES = {
    "nothing": ({"after_each_batch": False}, Automatic()),
    "after each batch": ({"after_each_batch": True}, Automatic(each_draw=True)),
    "an interval of 0 is after each batch": ({"after_each_batch": False, "interval": 0}, Automatic(each_draw=True)),
    "the flag decides": ({"after_each_batch": True, "interval": 3}, Automatic(each_draw=True)),
    "an interval": ({"after_each_batch": False, "interval": 3}, Automatic(most_fragments=3)),
    "the first too": ({"after_each_batch": True, "before_first": True}, Automatic(each_draw=True, first_draw=True)),
    "the first of nothing": ({"after_each_batch": False, "before_first": True}, Automatic()),
}


@pytest.mark.parametrize(("asked", "rule"), RULES.values(), ids=RULES)
def test_arguments_become_a_rule(asked, rule):
    made = Automatic.asked(**asked)
    assert made == rule
    assert made.off == (rule == Automatic())


@pytest.mark.parametrize("interval", [-2, 1.5, True, "3", None])
def test_a_wrong_interval_is_refused(interval):
    with pytest.raises(ValueError, match="max_weight_update_interval"):
        Automatic.asked(after_each_batch=False, interval=interval)


@pytest.mark.parametrize(
    ("rule", "draws"),
    [
        (Automatic(), [False, False, False]),
        (Automatic(each_draw=True), [False, True, True]),
        (Automatic(each_draw=True, first_draw=True), [True, True, True]),
        (Automatic(most_fragments=1), [False, False, False]),
    ],
)
def test_draws_after_which_weights_are_published(rule, draws):
    published = []
    renewal, seen = Renewal(rule, lambda: published.append(1)), []
    for _ in draws:
        before = len(published)
        renewal.at_draw()
        seen.append(len(published) > before)
    assert seen == draws


def test_what_is_newer_elsewhere_is_received_at_every_draw_before_weights_are_published():
    log = []
    renewal = Renewal(Automatic(each_draw=True), lambda: log.append("publish"), lambda: log.append("receive"))
    renewal.at_draw()
    renewal.at_draw()
    assert log == ["receive", "receive", "publish"]


class Asking:
    """Asks a worker for fragments until weights are published for one."""

    def __init__(self, rule):
        self.renewal = Renewal(rule, self.publish)
        self.published = False

    def publish(self):
        self.published = True

    def fragments_of(self, life, version):
        self.published = False
        for number in range(100):
            self.renewal.before_request(life, version)
            if self.published:
                return number
            self.renewal.asked(life, version)
        return None


@pytest.mark.parametrize(("rule", "most"), [(Automatic(most_fragments=1), 1), (Automatic(most_fragments=4), 4)])
def test_no_worker_makes_more_fragments_on_one_version(rule, most):
    asking = Asking(rule)
    assert asking.fragments_of((0, 0), version=0) == most
    assert asking.fragments_of((1, 0), version=0) == most, "each worker counts for itself"
    assert asking.fragments_of((0, 0), version=0) == 0, "it stays due until something newer is meant for it"
    assert asking.fragments_of((0, 0), version=1) == most
    assert asking.fragments_of((0, 1), version=1) == most, "a new life picks up the newest"


def test_without_an_interval_no_request_is_preceded_by_a_publication():
    assert Asking(Automatic(each_draw=True)).fragments_of((0, 0), 0) is None
