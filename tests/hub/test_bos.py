"""The BOS symbol in a tokenizer's files: there for `transformers`, and out of the way for us."""

from dataclasses import replace

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, processors
from transformers import AutoTokenizer

from esscher.core.space import Space
from esscher.data.tokenizers import Tokenizer, character_tokenizer, load_tokenizer, train_tokenizer
from esscher.hub.network_folder import with_bos

TEXTS = ["ab a", "", "b<bos>a <eos>"]


@pytest.mark.parametrize("kind", ["character", "byte", "bpe"])
def test_a_begin_symbol_for_them_and_none_for_us(tmp_path, kind):
    tokenizer = train_tokenizer(kind, TEXTS, vocab_size=300)
    size = tokenizer.vocab_size
    for _ in range(2):  # saved again, nothing changes
        with_bos(tokenizer, Space(size, 5)).save(tmp_path)
        tokenizer = load_tokenizer(tmp_path)
        assert (tokenizer.vocab_size, tokenizer.eos, tokenizer.name) == (size, 0, kind)
        assert tokenizer.encode(TEXTS) == train_tokenizer(kind, TEXTS, vocab_size=300).encode(TEXTS)
        theirs = AutoTokenizer.from_pretrained(tmp_path)
        assert (theirs.bos_token_id, theirs.pad_token_id, theirs.eos_token_id, len(theirs)) == (size, size, 0, size + 1)
        assert theirs("ab a")["input_ids"] == [size, *tokenizer.encode(["ab a"])[0]]
        assert theirs(["ab b b", "b"], padding=True)["input_ids"][1][:2] == [size, size]
        assert theirs.decode(theirs("ab a")["input_ids"], skip_special_tokens=True) == "ab a"


def test_a_name_that_is_taken(tmp_path):
    backend = Backend(models.WordLevel({"<eos>": 0, "<bos>": 1, "a": 2, "?": 3}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    with_bos(Tokenizer(backend, 0, "words"), Space(4, 5)).save(tmp_path)
    assert load_tokenizer(tmp_path).encode(["a <bos>"]) == [[2, 1]]
    assert AutoTokenizer.from_pretrained(tmp_path)("a <bos>")["input_ids"] == [4, 2, 1]


def test_a_vocabulary_that_was_rounded_up(tmp_path):
    tokenizer = replace(character_tokenizer("ab"), size=8)
    with_bos(tokenizer, Space(8, 5)).save(tmp_path)
    ours, theirs = load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert ours.vocab_size == 8 and theirs("ab")["input_ids"] == [8, 1, 2]
    assert ours.decode([[1, 5, 7, 2]]) == ["ab"]


def test_begin_symbols_of_another_model_are_left_out_and_places_stay(tmp_path):
    tokenizer = train_tokenizer("bpe", ["ab a"], vocab_size=260)
    size, text = tokenizer.vocab_size, "ab  a "
    template = processors.TemplateProcessing(single="<eos> $A <eos>", special_tokens=[("<eos>", 0)])
    tokenizer.backend.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), template])
    expected = tokenizer.encode_with_offsets([text])
    with_bos(tokenizer, Space(size, 5)).save(tmp_path)
    assert load_tokenizer(tmp_path).encode_with_offsets([text]) == expected
    assert AutoTokenizer.from_pretrained(tmp_path)(text)["input_ids"] == [size, *expected[0].tokens]
