"""Width of the interval of log Z at equal tokens for a tilt by meaning: a student as the proposal against the base.

Stories of stories260K, their first 24 tokens, are tilted by 15 times the cosine of their MiniLM embedding with that of one
sentence. The student is distilled from 8,000 candidates (`reweighted`); the first stage of `cyclical`, with a third of them,
had not moved it from the base. As in `proposals`: every proposal estimates log Z from the same number of tokens that pass
through the story model, those of 1,000 draws of the base; a draw of the student costs twice as much, one of their mixture
three times; what the student learnt from is not counted, nor is MiniLM, which reads each draw once, so that it reads half as
many draws of the student. `width` is the mean width of the 95 % interval over repeats; `of the base's` its ratio to that of
the base, below 1 a gain; `good` is how often the verdict is. One seed.
"""

import tempfile
from typing import Any

import torch
from torch import Tensor

import esscher
from benchmarks._timing import MissingPartError, Table
from benchmarks.proposals import rows_of, widths
from esscher.core.randomness import SeededRng
from esscher.energies.features import LogLinear, text_batch_feature
from esscher.hub.packaged_models import PACKAGED_MODELS, is_available, packaged_model_folder
from esscher.papers.sources import DATA, missing_message
from esscher.training.config import DistilConfig
from esscher.workflow.config.distil import DistilTraining

REPEATS = 5
STORIES, SENTENCE, WEIGHT, LENGTH, TOKENS_AS_DRAWS = DATA / "stories260K", "The boy was sad and cried.", 15.0, 24, 1000
STORY_LEARN = DistilConfig(candidates=8000, evaluation_draws=500)


def tilted_stories() -> Any:
    """Stories, tilted towards the meaning of a sentence."""
    from transformers import AutoModel, AutoTokenizer

    folder = packaged_model_folder("minilm")
    tokenizer, network = (one.from_pretrained(folder, trust_remote_code=False) for one in (AutoTokenizer, AutoModel))

    @torch.no_grad()
    def embeddings(texts: list[str]) -> Tensor:
        batch = tokenizer(texts, padding=True, return_tensors="pt")
        mask = batch["attention_mask"][..., None]
        vectors = (network.eval()(**batch).last_hidden_state * mask).sum(1) / mask.sum(1)
        return torch.nn.functional.normalize(vectors, dim=-1)

    wanted = embeddings([SENTENCE])[0]
    model = esscher.load(STORIES, max_length=LENGTH, eos="<s>")
    assert model.tokenizer is not None
    feature = text_batch_feature("similarity", model.tokenizer.decode, lambda texts: (embeddings(texts) @ wanted).tolist())
    return model.tilt(LogLinear([feature], torch.tensor([WEIGHT])))


def tables(repeats: int) -> list[Table]:
    if not is_available("minilm"):
        raise MissingPartError(f"MiniLM is not installed: {PACKAGED_MODELS['minilm'].install}")
    if not STORIES.is_dir():
        raise MissingPartError(missing_message(STORIES))
    model = tilted_stories()
    with tempfile.TemporaryDirectory() as place:
        student = model.distil(out=place, distil=STORY_LEARN, training=DistilTraining(epochs=4)).base
    rows = rows_of("stories", [widths(model.target, {"student": student}, TOKENS_AS_DRAWS, repeats, None, SeededRng(0))])
    return [Table("width of the interval of log Z at equal tokens", rows)]
