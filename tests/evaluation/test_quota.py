"""Who plays what."""

from hypothesis import given
from hypothesis import strategies as st

from swath.evaluation.runner import Quota


def share(quota, slot):
    """Episodes of one slot, in the order in which it plays them."""
    episode, played = quota.first_of(slot), []
    while episode is not None:
        played.append(episode)
        episode = quota.after(episode)
    return played


def test_slot_g_plays_g_and_every_s_th_episode_after_it():
    quota = Quota(range(10), 4)
    assert [share(quota, slot) for slot in range(4)] == [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]


def test_a_later_round_goes_on_with_the_numbers_and_keeps_each_in_its_slot():
    quota = Quota(range(10, 20), 4)
    assert [share(quota, slot) for slot in range(4)] == [[12, 16], [13, 17], [10, 14, 18], [11, 15, 19]]


@given(st.integers(0, 50), st.integers(1, 60), st.integers(1, 12))
def test_every_episode_is_played_once_by_the_slot_that_its_number_says(start, count, num_slots):
    quota = Quota(range(start, start + count), num_slots)
    shares = [share(quota, slot) for slot in range(num_slots)]
    assert sorted(episode for played in shares for episode in played) == list(quota.episodes)
    assert all(episode % num_slots == slot for slot, played in enumerate(shares) for episode in played)
    assert [quota.target(slot) for slot in range(num_slots)] == [len(played) for played in shares]


@given(st.integers(0, 50), st.integers(1, 60), st.integers(1, 12))
def test_waves_hold_the_same_episodes_at_most_one_per_slot(start, count, num_slots):
    waves = list(Quota(range(start, start + count), num_slots).waves())
    assert [episode for wave in waves for episode in wave.episodes] == list(range(start, start + count))
    assert all(wave.target(slot) <= 1 for wave in waves for slot in range(num_slots))


def test_the_slots_of_several_workers_are_numbered_through():
    workers = [Quota(range(10, 20), 6, first_slot) for first_slot in (0, 2, 4)]
    shares = [share(quota, slot) for quota in workers for slot in range(2)]
    assert shares == [share(Quota(range(10, 20), 6), slot) for slot in range(6)]
    assert [quota.nearest(1) for quota in workers] == [13, 15, 11]
