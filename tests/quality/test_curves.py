from benchmarks.quality.curves import picture


def test_a_line_for_every_run_and_a_colour_and_a_name_for_every_row():
    runs = [
        {"row": "VOGN", "losses": [3.0, 2.0, 1.0]},
        {"row": "VOGN", "losses": [3.0, 2.5, 1.5]},
        {"row": "without momentum", "losses": [3.0, 2.9]},
    ]
    axes = picture(runs).axes[0]
    lines = axes.get_lines()
    assert [list(line.get_ydata()) for line in lines] == [run["losses"] for run in runs]
    assert [list(line.get_xdata()) for line in lines] == [[1, 2, 3], [1, 2, 3], [1, 2]]
    assert lines[0].get_color() == lines[1].get_color() != lines[2].get_color()
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["VOGN", "without momentum"]
