from swath.nearest import suggestion


def test_the_nearest_name_is_suggested():
    assert suggestion("frame_per_batch", ["frames", "total_frames", "frames_per_batch"]) == (
        "; did you mean 'frames_per_batch'?"
    )


def test_nothing_is_suggested_for_a_name_that_is_like_none():
    assert suggestion("zzyzx", ["frames", "seed"]) == ""
    assert suggestion("frames", []) == ""
