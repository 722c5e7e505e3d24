from npu_profiler.torch_side.clock import ClockAlignment, ClockMark, align


def test_align_without_marks_knows_no_error():
    assert align([]) == ClockAlignment(0, None, 0)


def test_align_keeps_offset_zero_when_marks_allow_it():
    marks = [ClockMark(100, 110, 105), ClockMark(200, 204, 203)]
    assert align(marks) == ClockAlignment(0, 3, 2)


def test_align_takes_middle_of_what_all_marks_allow():
    marks = [ClockMark(100, 110, 1108), ClockMark(200, 204, 1203)]
    # The first allows 998..1008, the second 999..1003.
    assert align(marks) == ClockAlignment(1001, 2, 2)


def test_align_of_drifting_clocks_covers_every_mark_by_its_error():
    marks = [ClockMark(0, 2, 1), ClockMark(100, 102, 151), ClockMark(200, 202, 301)]
    found = align(marks)
    assert found.offset_ns == 50
    for mark in marks:
        for edge in (mark.before_ns, mark.after_ns):
            assert abs(mark.torch_ns - edge - found.offset_ns) <= found.error_ns
