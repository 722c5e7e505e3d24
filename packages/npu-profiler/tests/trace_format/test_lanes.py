from npu_profiler.trace_format.lanes import Lanes


def test_spans_that_follow_each_other_share_a_lane():
    lanes = Lanes()
    assert [lanes.place(0, 5, 1), lanes.place(5, 9, 2), lanes.place(20, 30, 1)] == [0, 0, 0]


def test_span_around_earlier_ones_of_its_thread_shares_their_lane():
    lanes = Lanes()
    assert [lanes.place(1, 2, 1), lanes.place(3, 4, 1), lanes.place(0, 5, 1)] == [0, 0, 0]


def test_span_around_one_of_another_thread_gets_a_lane_of_its_own():
    lanes = Lanes()
    assert [lanes.place(1, 2, 1), lanes.place(0, 5, 2)] == [0, 1]


def test_spans_that_cross_stand_apart_and_a_free_lane_serves_again():
    lanes = Lanes()
    assert [lanes.place(0, 5, 1), lanes.place(4, 8, 1), lanes.place(6, 9, 1)] == [0, 1, 0]
