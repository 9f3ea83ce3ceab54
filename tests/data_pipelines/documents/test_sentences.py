import random
import sys
import time

import pytest

from data_pipelines.documents import sentences


def test_paragraph_is_cut_where_its_sentences_end():
    for expected in (
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
    ):
        assert sentences.split_paragraph(" ".join(expected)) == expected
    # East Asian sentences need no space between them.
    assert sentences.split_paragraph("中文句子。第二句！") == ["中文句子。", "第二句！"]


@pytest.mark.parametrize(
    "expected",
    [
        ["आज मौसम अच्छा है।", "डॉ. शर्मा आए हैं।", "5 कि.मी. दूर है?", "“हाँ॥”", "देर हो गई है।"],
        ["धर्मक्षेत्रे कुरुक्षेत्रे । १ ।", "मामकाः पाण्डवाः ॥२॥", "इति"],
        ["এটি একটি বাক্য।", "ডা. রহমান এলেন।", "কেন?"],
        ["الطقس جميل اليوم.", "متى ستخرج؟", "قال د. أحمد: «نعم؟!»\u200f", "تأخر (؟) الوقت۔", "نعم"],
        ["یہ اچھا ہے۔", "وہ ایم۔اے ہے۔", "کیوں؟"],
        ["Բարեւ ձեզ։", "Ինչպե՞ս եք։", "Լավ"],
        ["ሰላም ነው።", "እንዴት ነህ፧", "ሰላም፡ነው፡፡", "ጥሩ"],
        ["မြန်မာစာ။", "ကောင်းပါတယ်။"],
        ["ភាសាខ្មែរ។ល។", "ល្អណាស់។", "សួស្តី៕", "បាទ"],
        ["༄༅། །བཀྲ་ཤིས་བདེ་ལེགས། །", "ཁྱེད་རང་།", "སྐད་ཆ"],
        ["ქართული ლამაზია.", "ის უძველესია.", "ი. ჭავჭავაძე დაიბადა.", "რა კარგია!", "დიახ"],
        ["Т. е. в 10 ч. утра.", "Улица им. Ленина, д. 5.", "Уже поздно."],
        ["א. ב. יהושע כתב.", "טוב."],
        ["สวัสดี ดร. สมชาย พ.ศ. 2560!", "ดีไหม?"],
        ["한국어입니다.", "네.", "알겠습니다!"],
        ["他说：“好的。”", "他说“好的。”，然后走了（？）吗。", "「什麼？」", "下一句"],
        ["これは３．５です．", "（はい。）", "もう遅い！"],
        ["Er sagte: „Gut.“", "»Ja.«", "« Oui ! »", "Elle rit."],
        ["ᱥᱟᱱᱛᱟᱲᱤ᱾", "ᱚᱠᱟ᱿"],
    ],
    ids=lambda expected: expected[0][:8],
)
def test_sentences_end_in_every_script(expected):
    assert sentences.split_paragraph(" ".join(expected)) == expected
    # Look-alikes end none: a pipe, a colon, an Ethiopic word space, a Greek semicolon.
    for text in ("एक | दो", "Բարեւ: Լավ", "ሰላም፡ ነው፡ ጥሩ", "τι; καλά"):
        assert sentences.split_paragraph(text) == [text]


def test_paragraphs_are_never_joined_and_blank_ones_vanish():
    text = "one half of\n \nanother. It ends\nwith this"
    expected = ["one half of", "another.", "It ends", "with this"]
    assert sentences.split_document(text, sentences.split_paragraph) == expected
    text = "Two here. Really two.\n\n  Second line. "
    expected = ["Two here. Really two.", "Second line."]
    assert sentences.split_document(text, sentences.SPLITTERS["lines"]) == expected


NASTY = list('ab Z.!?…。！"”’»)]}“‘«([{ \t\x0b\x851中é\u2028\xa0\u3000😀\u0301')
NASTY += [*"।॥؟۔။។།։፡.．「」“«»１१ა", "Dr.", "e.g. ", "U.S. ", " The ", "J. ", "1. "]


@pytest.mark.parametrize("name", ["rules", "lines", "sentencex", "sentencex:ja"])
def test_no_splitter_loses_or_adds_anything_but_white_space(name):
    splitter = sentences.splitter(name)
    rng = random.Random(0)
    for _ in range(2000):
        text = "".join(rng.choice(NASTY) for _ in range(rng.randrange(30)))
        split = splitter(text)
        assert "".join("".join(split).split()) == "".join(text.split())
        assert all(sentence == sentence.strip() != "" for sentence in split)


def test_sentencex_knows_the_abbreviations_of_the_language():
    text = "Er mag Obst, z. B. Birnen. Ich auch."
    assert sentences.splitter("sentencex:de")(text) == ["Er mag Obst, z. B. Birnen.", "Ich auch."]
    assert sentences.splitter("sentencex")("It is so. Is it?") == ["It is so.", "Is it?"]


def test_a_language_that_sentencex_does_not_know_is_an_error_that_lists_the_others():
    for language in ("qqq", "DE", "tr"):
        with pytest.raises(
            ValueError, match=f"no rules for '{language}'.* am, ar, .*, te, uk: give"
        ):
            sentences.splitter(f"sentencex:{language}")
    for language in sentences.SENTENCEX_LANGUAGES.split():
        assert sentences.splitter(f"sentencex:{language}")("Text") == ["Text"]


def test_an_unknown_or_missing_splitter_is_an_error_that_says_what_to_do(monkeypatch):
    for name in ("nonesuch", "rules:de", ""):
        with pytest.raises(ValueError, match="rules, lines, sentencex, or sentencex:LANGUAGE"):
            sentences.splitter(name)
    sentences._sentencex_segment.cache_clear()
    monkeypatch.setitem(sys.modules, "sentencex", None)
    with pytest.raises(ValueError, match="pip install sentencex"):
        sentences.splitter("sentencex")


@pytest.mark.faults
@pytest.mark.parametrize(
    "unit",
    [".", "a. ", "A. ", ")", '."', "... ", "no. ", "e.g. x ", "x", "(", "7 ", "7. a"]
    + ["। ", "། ", "།།", "。，", "۔", "(？", "१।", "፡"],
)
def test_a_line_without_sentences_takes_no_longer_than_its_length(unit):
    def seconds(length):
        start = time.process_time()
        sentences.split_paragraph(unit * (length // len(unit)) + "x")
        return time.process_time() - start

    # Time squared would be 64 times as much.
    assert seconds(200_000) < 24 * seconds(25_000) + 0.1
