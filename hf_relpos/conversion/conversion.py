"""``convert``: native positions out, relative ones in, and what the original says taught to the copy."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import PreTrainedModel

from hf_relpos.compat import sentence_transformers as sentences
from hf_relpos.config import RelPosLike
from hf_relpos.conversion import admission, warm_start
from hf_relpos.conversion.batches import Batch, Frame, Steps, filled, tokens_in_a_step
from hf_relpos.conversion.callbacks import tell
from hf_relpos.conversion.examination import Examination
from hf_relpos.conversion.fidelity import FidelityReport
from hf_relpos.conversion.frame import frame_of
from hf_relpos.conversion.labels import labels_for
from hf_relpos.conversion.lengths import default_lengths, set_lengths, warn_of_short_lengths
from hf_relpos.conversion.matching import Matching
from hf_relpos.conversion.progress import check_folder, open_folder
from hf_relpos.conversion.reading import Pool, mean_of_states
from hf_relpos.conversion.stages import Stage, Training, device_of, run_stage
from hf_relpos.conversion.student import make_student
from hf_relpos.conversion.texts import read_documents, split, warn_of_short_texts
from hf_relpos.texts import Texts

Model = TypeVar("Model", bound=nn.Module)

_WATCHED_TOKENS = 16_384  # read by the warm start, about


def convert(
    model: Model,
    relpos: RelPosLike,
    texts: Texts,
    tokenizer: Any = None,
    *,
    column: str = "text",
    lengths: Sequence[int] | None = None,
    steps: Sequence[int] = (300, 2000),
    batch_tokens: int = 256,
    learning_rates: Sequence[float] = (2e-2, 6e-5, 6e-4),
    matching: Matching | None = None,
    start: str = "data-free",
    target: float | None = None,
    seed: int = 0,
    output_dir: str | Path | None = None,
    resume: bool = False,
    training_arguments: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> Model:
    """A copy of a model with relative positions in place of its own, which says what the model says and reads longer.

    The original is the teacher, so no labels are needed: what its layers make of the texts is what the copy learns to
    make of them. First its tables and gates learn alone, then its layers as well.

    Args:
        model: a model of Transformers of a supported family, with any head, or a ``SentenceTransformer``. Its positions
            may be those of its family, or relative ones already. It stays as it is; during the training it is in eval
            mode and on the training's device.
        relpos: a scheme config, a scheme's name, several of these, or a :class:`RelPosConfig` with ``native="drop"``.
        texts: without labels: a text file with an empty line between two texts, a data set of ``datasets`` or the id of
            one, or anything that gives strings.
        tokenizer: the model's; a ``SentenceTransformer`` has one itself. Its ``model_max_length`` is raised to the
            longest of ``lengths``.
        column: the column of a data set that has the texts.
        lengths: of the sequences to learn from, in tokens with the special ones; each step draws one, and about
            equally many tokens are read at each. By default from an eighth of what the model reads (in a decoder, from
            what it reads) to three times that. Beyond what it reads, the model reads overlapping windows, and the copy
            learns what it says of their middles.
        steps: how many for the tables and gates alone, and how many for everything; 0 leaves a stage out.
        batch_tokens: tokens per step, about; at least one sequence.
        learning_rates: the highest: of tables and gates in the first stage; of the layers in the second; of tables and
            gates in the second.
        matching: what is matched, and how much each part counts.
        start: where the tables start: from what positions do to the model's scores while it reads one token over and
            over (``"data-free"``) or some of the texts (``"texts"``), or from their scheme's own values (``"zeros"``).
        target: a stage ends once the cosine of the embeddings is at least this at each length that the model reads.
        seed: of everything that is drawn. On one machine, equal seeds give equal models.
        output_dir: for checkpoints, where ``training_arguments`` has a ``save_strategy``.
        resume: go on with the conversion that was begun there, from its last checkpoint if it came to one.
        training_arguments: for ``TrainingArguments``, for one ``{"bf16": True}``, or ``{"save_strategy": "steps",
            "save_steps": 50}``.
        progress: show what is being done, and a progress bar with the agreement so far.

    Returns:
        The copy, of the kind that was given and in eval mode. Its ``relpos_fidelity`` is the
        :class:`hf_relpos.FidelityReport` on texts that were held out.

    Raises:
        ConversionError: (a ``ValueError``) for what cannot be converted, a tokenizer of another vocabulary, or a wrong
            setting.
        TextsError: (a ``ValueError``) for texts that cannot be read.
        UnsupportedModelError: (a ``TypeError``) if it is no such model.
        RelPosConfigError: (a ``ValueError``) for a wrong choice.
        NothingPatchedError: (a ``ValueError``) if the model's positions cannot be dropped.
    """
    begun = time.perf_counter()
    config = admission.choices_of(relpos)
    inner = admission.transformer_of(model)
    family = admission.check_model(inner, config)
    if tokenizer is None and sentences.is_sentence_model(model):
        tokenizer = model.tokenizer
    admission.check_tokenizer(tokenizer, inner)
    frame = frame_of(inner, family, tokenizer)
    lengths = default_lengths(frame.reach, frame.causal) if lengths is None else lengths
    admission.check_settings(
        lengths=lengths, steps=steps, batch_tokens=batch_tokens, learning_rates=learning_rates, start=start,
        target=target, matching=matching, training_arguments=training_arguments, special=frame.special,
    )  # fmt: skip
    matching = matching or Matching()
    stages = (
        # Tables alone would pay for long sequences with what they do in short ones.
        Stage("tables", steps[0], None, learning_rates[0], replace(matching, long_embedding=0.0)),
        Stage("all", steps[1], learning_rates[1], learning_rates[2], matching),
    )
    training = Training(output_dir, resume, seed, training_arguments or {}, target, progress)
    device = device_of(training)
    settings = {
        "model": type(inner).__name__, "relpos": {**config.to_dict(), "engine": None}, "lengths": list(lengths),
        "steps": list(steps), "batch_tokens": batch_tokens, "learning_rates": list(learning_rates),
        "matching": asdict(matching), "start": start, "target": target, "seed": seed,
    }  # fmt: skip
    check_folder(None if output_dir is None else Path(output_dir), settings, resume)
    tell("reading the texts", progress)
    learned_from = round(sum(steps) * tokens_in_a_step(lengths, batch_tokens))
    longest = max(lengths) - frame.special
    documents = read_documents(texts, tokenizer, max(learned_from, 2 * _WATCHED_TOKENS, longest), column, longest)
    learned, held_out = split(documents, seed)
    warn_of_short_texts(held_out, longest)
    warn_of_short_lengths(lengths, frame.reach)
    pool: Pool = partial(sentences.embed, model) if sentences.is_sentence_model(model) else mean_of_states
    exam = Examination.of(
        held_out, frame, sorted(set(lengths)), batch_tokens, labels_for(inner, frame, tokenizer, seed), inner, pool
    )
    if output_dir is not None:
        open_folder(Path(output_dir), settings)
    tell("watching what positions do to the model's scores", progress and start != "zeros")
    watched = _watched(learned, frame, start, lengths, inner, seed)
    with _as_teacher(model, device):
        student, seen = make_student(inner, config, lambda original: warm_start.watch(original, watched), device)
        warm_start.fold_mean_position(student, inner)
        if start != "zeros":
            warm_start.start_tables(student, seen)
        tell("measuring the start", progress)
        report = FidelityReport(exam.measure("start", student), settings=settings)
        for stage in stages:
            if stage.steps:
                data = partial(Steps, learned, frame, lengths, batch_tokens, stage.steps, f"{seed} {stage.name}")
                run_stage(stage, student, inner, pool, training, data, exam)
                tell(f"measuring after {stage.name}", progress)
                report.rows += exam.measure(stage.name, student)
    report.seconds = time.perf_counter() - begun
    return _finished(model, inner, student, tokenizer, max(lengths), report)


def _watched(
    documents: Sequence[Sequence[int]], frame: Frame, start: str, lengths: Sequence[int], model: Any, seed: int
) -> list[Batch]:
    """Sequences to watch the original with: full ones of texts, or of one token each, drawn from its vocabulary.

    Where a sequence repeats one token, all that differs from place to place is the position.
    """
    if start == "zeros":
        return []
    length = min(max(lengths), frame.reach or max(lengths))
    size, draw = length - frame.special, random.Random(f"{seed} watched")
    rows = max(2, _WATCHED_TOKENS // length)
    if start == "data-free":
        words = model.get_input_embeddings().weight.shape[0]
        contents = [[draw.randrange(words)] * size for _ in range(rows)]
    else:
        contents = [filled(draw, (), size, documents) for _ in range(rows)]
    return [frame.batch(contents[first : first + 4]) for first in range(0, len(contents), 4)]


@contextmanager
def _as_teacher(model: Any, device: torch.device) -> Iterator[None]:
    """Have a model on a device and in eval mode for a while."""
    modes = [(module, module.training) for module in model.modules()]
    before = model.device
    model.to(device).eval()
    try:
        yield
    finally:
        model.to(before)
        for module, mode in modes:
            module.training = mode


def _finished(
    model: Any, inner: PreTrainedModel, student: PreTrainedModel, tokenizer: Any, longest: int, report: FidelityReport
) -> Any:
    """What is handed back: the student as the original was, or in a copy of the sentence model around it."""
    student.requires_grad_(True).to(inner.device, inner.dtype).eval()
    whole: Any = student
    if model is not inner:
        whole = copy.deepcopy(model, {id(inner): student})
        tokenizer = whole.tokenizer
    set_lengths(whole, student, tokenizer, longest)
    whole.relpos_fidelity = report
    return whole
