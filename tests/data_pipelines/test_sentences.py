import pytest

from data_pipelines import sentences


@pytest.mark.parametrize(
    "expected",
    [
        ["Dr. Smith met Mr. J. R. R. Tolkien at 3.14 p.m.", "He left."],
        ['He said "Stop."', "Then she left (at once.)", "It was late."],
        ["See Fig. 3 for e.g. Apples vs. Oranges.", "They differ."],
        ["Version 2.0 is out.", "3 items remain.", "Pi is 3.1415 or so."],
        ["The U.S. Army came.", "It lives in the U.S.", "The end."],
        ["Really?!", "Yes... maybe.", "(This is so.)", "Next one."],
        ["Smith et al. (2019) did it.", "It is good."],
        ["Import numpy.linalg first.", "Then call it, i.e. use it.", "Is it? no."],
        ["1. First do this.", "2. Then that."],
        ["The answer is no.", "The rest follows."],
        ["No end mark here"],
    ],
)
def test_paragraph_is_cut_where_its_sentences_end(expected):
    assert sentences.split_paragraph(" ".join(expected)) == expected


def test_east_asian_sentences_need_no_space_between_them():
    assert sentences.split_paragraph("中文句子。第二句！") == ["中文句子。", "第二句！"]


def test_paragraphs_are_never_joined_and_blank_ones_vanish():
    text = "one half of\n \nanother. It ends\nwith this"
    expected = ["one half of", "another.", "It ends", "with this"]
    assert sentences.split_document(text, sentences.split_paragraph) == expected


def test_lines_splitter_keeps_a_line_whole():
    text = "Two here. Really two.\n\n  Second line. "
    expected = ["Two here. Really two.", "Second line."]
    assert sentences.split_document(text, sentences.SPLITTERS["lines"]) == expected
