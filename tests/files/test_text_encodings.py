import functools
import io
import random
import re
import shutil
import subprocess

import pytest

from bertjax.files import text_encodings

# Article 1 of the Universal Declaration of Human Rights.
TEXTS = {
    "Russian": "Все люди рождаются свободными и равными в своем достоинстве и правах. Они наделены "
    "разумом и совестью и должны поступать в отношении друг друга в духе братства.",
    "Ukrainian": "Всі люди народжуються вільними і рівними у своїй гідності та правах. Вони "
    "наділені розумом і совістю і повинні діяти у відношенні один до одного в дусі братерства.",
    "Turkish": "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar. Akıl ve vicdana "
    "sahiptirler ve birbirlerine karşı kardeşlik zihniyeti ile hareket etmelidirler.",
    "German": "Alle Menschen sind frei und gleich an Würde und Rechten geboren. Sie sind mit "
    "Vernunft und Gewissen begabt und sollen einander im Geist der Brüderlichkeit begegnen.",
    "Spanish": "Todos los seres humanos nacen libres e iguales en dignidad y derechos y, dotados "
    "como están de razón y conciencia, deben comportarse fraternalmente los unos con los otros, "
    "según la Declaración de París.",
    "Greek": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα.",
    "Arabic": "يولد جميع الناس أحرارا متساوين في الكرامة والحقوق. وقد وهبوا عقلا وضميرا وعليهم أن "
    "يعامل بعضهم بعضا بروح الإخاء.",
    "Thai": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ",
    "Japanese": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて"
    "平等である。人間は、理性と良心とを授けられており、互いに同胞の精神をもって行動しなければならない。",
    "Korean": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. 인간은 "
    "천부적으로 이성과 양심을 부여받았으며 서로 형제애의 정신으로 행동하여야 한다.",
}
ENCODINGS = {
    "Russian": ("cp1251", "koi8-r"), "Ukrainian": ("cp1251",), "Turkish": ("cp1254",),
    "German": ("cp1252", "mac-roman"), "Spanish": ("cp1252", "mac-roman"),
    "Greek": ("cp1253",), "Arabic": ("cp1256",), "Thai": ("cp874",),
    "Japanese": ("cp932", "euc-jp"), "Korean": ("cp949",),
}  # fmt: skip
WIDE = ("utf-16", "utf-16-le", "utf-16-be", "utf-32")


@functools.cache
def known_to_iconv():
    return subprocess.run(["iconv", "-l"], capture_output=True, check=True, text=True).stdout


def test_the_encoding_of_a_text_is_named():
    for language, encodings in ENCODINGS.items():
        text = f"{TEXTS[language]}\n" * 4
        for encoding in encodings:
            advice = text_encodings.advice(text.encode(encoding), "--encoding")
            assert f"it looks like {encoding}, which reads" in advice
            assert f"give --encoding={encoding}, or" in advice
            name = re.search("iconv -f (.*) -t utf-8", advice)[1]
            assert shutil.which("iconv") is None or f"{name.upper()}//" in known_to_iconv()
        for encoding in WIDE:
            assert f"it looks like {encoding}, " in text_encodings.advice(text.encode(encoding))


# Three lines each.
SHORT = {
    "cp1250": "Dziś jest ładnie.\nOna czyta książkę.\nZażółć.\n",
    "cp1254": "Bugün hava çok güzel.\nYarın sinemaya gidiyoruz.\nO okuyor, şimdi değil.\n",
    "cp1257": "Šiandien gražus oras.\nRytoj eisime į kiną.\nJi skaito knygą.\n",
    "euc-jp": "こんにちは。\n今日は天気がいい。\n彼女は本を読んでいる。\n",
}


def test_of_too_little_text_the_likeliest_encodings_are_named_with_how_each_reads_it():
    for encoding, text in SHORT.items():
        guessed = text_encodings.guess(text.encode(encoding))
        assert encoding in guessed.encodings and len(guessed.encodings) <= 4
    several = text_encodings.advice(SHORT["cp1257"].encode("cp1257"), "--encoding")
    assert several.startswith("there is too little text to tell; perhaps it is ")
    assert "or cp1257, which reads 'Šiandien" in several
    assert several.endswith(
        ": give --encoding=ENCODING, or convert it with `iconv -f ENCODING -t utf-8`, with the one "
        "that reads right"
    )


def test_a_damaged_line_of_utf8_is_not_taken_for_another_encoding():
    for text in TEXTS.values():
        data = f"{text}\n{text}\n{text}".encode() + b"\xff\n"
        assert "other lines of the file are UTF-8" in text_encodings.advice(data)


def test_what_is_no_text_is_called_that():
    rng = random.Random(0)
    for data in (rng.randbytes(200), rng.randbytes(60_000), bytes(50), bytes(range(256)) * 4):
        assert text_encodings.advice(data).startswith("it holds random bytes")


def test_a_file_in_another_encoding_comes_as_utf8_whatever_the_size_of_its_parts(monkeypatch):
    monkeypatch.setattr(text_encodings, "_CHUNK_BYTES", 101)
    for language, encodings in ENCODINGS.items():
        text = f"{TEXTS[language]}\nend"
        for encoding in (*encodings, *WIDE, "utf-8"):
            file = text_encodings.as_utf8(io.BytesIO(text.encode(encoding)), encoding, "a")
            assert file.read().decode("utf-8-sig") == text


def test_a_file_of_utf8_is_not_read_in_another_encoding():
    for encoding in ("cp1251", "cp932", "utf-16"):
        for language, text in TEXTS.items():
            file = text_encodings.as_utf8(io.BytesIO(text.encode()), encoding, "a.txt")
            with pytest.raises(ValueError, match="a.txt is UTF-8, and another text"):
                print(language, file.read())
    ascii_alone = text_encodings.as_utf8(io.BytesIO(b"plain"), "cp1251", "a.txt")
    assert ascii_alone.read() == b"plain"


def test_a_carriage_return_ends_lines_where_nothing_else_does_and_other_files_stay(monkeypatch):
    for encoding in ("utf-8", "cp1251", *WIDE):
        text = "это\r\rтри\rстроки\r"
        file = text_encodings.as_utf8(io.BytesIO(text.encode(encoding)), encoding, "a")
        assert file.read().decode("utf-8-sig") == text.replace("\r", "\n")
    for data in (b"a\rb\nc", b"a\r\nb\rc\r\n", b"a", b"", b"\n\r\r", bytes(range(256))):
        file = text_encodings.with_line_feeds(io.BytesIO(data))
        assert list(file) == list(io.BytesIO(data))
    # The first line feed comes behind the part that decides.
    for size in (3, 4, 5, 6, 7):
        monkeypatch.setattr(text_encodings, "_CHUNK_BYTES", size)
        monkeypatch.setattr(text_encodings, "_PIECE_BYTES", size)
        file = text_encodings.with_line_feeds(io.BytesIO(b"ab\r\rc\r\r\n\rd\r\ne"))
        assert file.read() == b"ab\n\nc\n\n\nd\ne"
