from npu_ops.debugging.series_plot import Panel, draw_series


def test_panels_share_the_time_and_have_scales_of_their_own():
    panels = [Panel("a", {"x": [1.0, 3.0]}), Panel("b", {"y": [10.0, 0.0], "z": [5.0, 100.0]})]
    first, second = draw_series([0.0, 2.0], panels, title="t").figure.axes
    assert first.get_xlim() == second.get_xlim() == (0, 2)
    assert [list(line.get_ydata()) for line in second.lines] == [[10, 0], [5, 100]]
    assert first.get_ylim()[1] < 4 < 100 < second.get_ylim()[1]


def test_no_looks_are_drawn():
    assert draw_series([], [Panel("a", {"x": []})], title="t").svg().startswith("<svg")
