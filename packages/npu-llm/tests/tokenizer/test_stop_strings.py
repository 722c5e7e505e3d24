import random

from npu_llm.tokenizer.detokenizer import StopStrings


def taken(stops, pieces):
    one = StopStrings(stops)
    passed = "".join(one.take(piece) for piece in pieces)
    return passed + one.rest(), one.has_stopped


def test_a_stop_string_may_come_in_pieces():
    assert taken(["END"], ["a E", "N", "D b"]) == ("a ", True)
    assert taken(["END"], ["a E", "N", "d b"]) == ("a ENd b", False)
    assert taken(["END"], ["a EN"]) == ("a EN", False)


def test_the_first_of_several_counts():
    assert taken(["xx", "ab"], ["1ab2xx"]) == ("1", True)
    assert taken([], ["abc", ""]) == ("abc", False)


def test_any_cut_into_pieces_gives_the_same_text():
    numbers = random.Random(4)
    for _ in range(300):
        text = "".join(numbers.choice("ab") for _ in range(30))
        stops = ["".join(numbers.choice("ab") for _ in range(numbers.randint(1, 6)))]
        cuts = sorted(numbers.sample(range(31), 5))
        pieces = [text[i:j] for i, j in zip([0, *cuts], [*cuts, 30], strict=True)]
        place = text.find(stops[0])
        assert taken(stops, pieces) == (text if place < 0 else text[:place], place >= 0)
