from bertjax.tokenization import tokenizer
from data_pipelines import inspect_vocabulary

ENTRIES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "クラフ", "グラフ", "cafe", "##s", "("]


def shown(text, **rules):
    known = tokenizer.WordPieceTokenizer(ENTRIES, **rules)
    return dict(line.split(None, 1) for line in inspect_vocabulary.lines(known, text))


def test_tokens_the_text_that_comes_back_and_each_loss_are_shown():
    plain = shown("Cafes (cafe")
    assert plain["tokens"] == "cafe ##s ( cafe" and plain["ids"] == "7 8 9 7"
    assert plain["comes"] == "back  cafes ( cafe" and plain["lost"] == "nothing but case"
    assert plain["size"] == "4 tokens, 2.8 characters each"
    assert plain["vocabulary"].endswith("wordpiece: lowercase True, strip_accents True")
    assert shown("グラフ")["lost"] == "100% of the words lose marks, as グラフ -> クラフ"
    whole = shown("グラフ", normalization="nfc")
    assert (whole["tokens"], whole["lost"]) == ("グラフ", "nothing")
    assert shown("グラフ 漢字", normalization="nfc")["lost"] == "2 of 3 tokens are [UNK]: 漢, 字"
    assert shown("cafe \u00ad", normalization="nfc")["lost"] == "characters without a token: U+00AD"


def test_the_program_reads_a_directory_and_two_arguments(tmp_path, capsys):
    tokenizer.WordPieceTokenizer(ENTRIES, normalization="nfc").save(tmp_path)
    inspect_vocabulary.main(inspect_vocabulary.Options(str(tmp_path), "グラフ"))
    assert "comes back  グラフ\n" in capsys.readouterr().out
    # A byte of an argument that is not UTF-8, and half a surrogate pair.
    inspect_vocabulary.main(inspect_vocabulary.Options(str(tmp_path), "\udcff \ud83d"))
    assert "characters without a token: U+FFFD\n" in capsys.readouterr().out
