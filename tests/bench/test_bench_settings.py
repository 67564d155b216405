from swath.bench import Grid, Score, Setting, as_fast, best, shares, whole_rounds

INLINE, PROCESSES = Setting("inline", 1, 8), Setting("process", 2, 16)


def test_a_grid_has_each_combination_once_and_one_worker_inline():
    settings = Grid(("inline", "process"), (1, 2), (4, 8)).settings()
    assert settings == [
        *(Setting("inline", 1, envs) for envs in (4, 8)),
        *(Setting("process", workers, envs) for workers in (1, 2) for envs in (4, 8)),
    ]


def test_an_env_that_is_batched_already_is_measured_as_it_is():
    assert Grid(("inline", "thread"), (1, 2), ()).settings() == [
        Setting("inline", 1, None),
        Setting("thread", 1, None),
        Setting("thread", 2, None),
    ]


def test_a_batch_has_the_same_number_of_frames_from_every_env():
    assert [setting.batch_of(100) for setting in (INLINE, PROCESSES, Setting("thread", 3, None))] == [104, 128, 102]


def test_a_setting_is_a_line_of_code():
    assert PROCESSES.code("'CartPole-v1'", "policy", 100) == (
        "Collector('CartPole-v1', policy, frames_per_batch=128, envs_per_worker=16, backend='process', "
        "num_collectors=2, sync=True)"
    )
    assert Setting("inline", 1, None).code("make_env", "", 100) == "Collector(make_env, frames_per_batch=100)"


def test_the_best_is_that_of_most_rounds_even_if_the_machine_was_busy_in_them():
    lucky, steady = Score(INLINE, (900.0, 100.0, 150.0)), Score(PROCESSES, (300.0, 200.0, 200.0))
    failed = Score(Setting("ray", 1, 8), (), "no room")
    assert shares([lucky, failed, steady]) == [0.75, 0.0, 1.0]
    assert best([lucky, failed, steady]) is steady
    assert best([failed]) is None
    assert failed.median == 0


def test_what_is_as_fast_as_the_best_in_some_round_cannot_be_told_from_it():
    winner = Score(PROCESSES, (300.0, 100.0, 320.0))
    near, far = Score(INLINE, (150.0, 100.0, 305.0)), Score(Setting("inline", 1, 1), (200.0, 99.0, 319.0))
    assert as_fast([winner, near, far, Score(Setting("ray", 1, 1))], winner) == [near]


def test_only_rounds_in_which_all_had_their_turn_are_compared():
    first, second = Score(INLINE, (100.0, 500.0)), Score(PROCESSES, (200.0,))
    failed = Score(Setting("ray", 1, 8), (), "no room")
    assert whole_rounds([first, failed, second]) == 1
    assert shares([first, failed, second]) == [0.5, 0.0, 1.0]
    assert best([first, failed, second]) is second


def test_before_the_end_of_the_first_round_none_is_best():
    scores = [Score(INLINE, (100.0,)), Score(PROCESSES)]
    assert whole_rounds(scores) == 0
    assert shares(scores) == [0.0, 0.0]
    assert best(scores) is None


def test_a_score_is_a_row_of_plain_values():
    assert Score(PROCESSES, (300.0, 200.0, 400.04)).to_dict() == {
        "backend": "process",
        "workers": 2,
        "envs": 16,
        "median_frames_per_second": 300.0,
        "lowest_frames_per_second": 200.0,
        "highest_frames_per_second": 400.0,
        "rounds": 3,
        "failure": "",
    }
