"""Tiny random Hugging Face models and batches for them, built from configurations: nothing is downloaded."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

BATCH, TIME, VOCABULARY, WIDTH = 3, 5, 40, 16
Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """A model and what it is fed with; the first input is the one that is changed to see whose rows are."""

    make: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    exclude: tuple[str, ...] = ()  # layers whose weight is used without calling them


_DECODER = {
    "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 32,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip
_ENCODER = {
    "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 2, "max_position_embeddings": 32, "pad_token_id": 0, "type_vocab_size": 2,
}  # fmt: skip
_VISION = {
    "hidden_size": WIDTH, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 8,
    "patch_size": 4, "num_channels": 3,
}  # fmt: skip


def tokens() -> Batch:
    return {"input_ids": torch.randint(3, VOCABULARY, (BATCH, TIME))}


def language() -> Batch:
    batch = tokens()
    return {**batch, "attention_mask": torch.ones_like(batch["input_ids"]), "labels": batch["input_ids"]}


def classified() -> Batch:
    return {**tokens(), "attention_mask": torch.ones(BATCH, TIME, dtype=torch.long), "labels": torch.tensor([0, 1, 0])}


def translated() -> Batch:
    return {**tokens(), "labels": torch.randint(3, VOCABULARY, (BATCH, TIME - 1))}


def images(size: int = 8) -> Batch:
    return {"pixel_values": torch.randn(BATCH, 3, size, size), "labels": torch.tensor([0, 1, 0])}


def heard() -> Batch:
    return {"input_features": torch.randn(BATCH, 8, 20), "labels": torch.randint(3, VOCABULARY, (BATCH, 4))}


def paired() -> Batch:
    return {**tokens(), "pixel_values": torch.randn(BATCH, 3, 8, 8)}


def _made(model: str, config: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        made: nn.Module = getattr(hf, model)(getattr(hf, config)(**options))
        return made

    return make


def decoder(name: str, exclude: tuple[str, ...] = (), **options: Any) -> Case:
    return Case(_made(f"{name}ForCausalLM", f"{name}Config", **{**_DECODER, **options}), language, exclude)


def encoder(name: str, exclude: tuple[str, ...] = (), head: str = "SequenceClassification", **options: Any) -> Case:
    make = _made(f"{name}For{head}", f"{name}Config", **{**_ENCODER, **options})
    return Case(make, language if head == "MaskedLM" else classified, exclude)


def vision(name: str, batch: Callable[[], Batch] = images, **options: Any) -> Case:
    return Case(_made(f"{name}ForImageClassification", f"{name}Config", **{**_VISION, **options}), batch)


def _clip() -> nn.Module:
    sizes = {"hidden_size": WIDTH, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {**sizes, "vocab_size": VOCABULARY, "max_position_embeddings": 32, "eos_token_id": 2, "pad_token_id": 0}
    vision_sizes = {**sizes, "image_size": 8, "patch_size": 4}
    return hf.CLIPModel(hf.CLIPConfig(text_config=text, vision_config=vision_sizes, projection_dim=8))


_GPT2 = {
    "vocab_size": VOCABULARY, "n_embd": WIDTH, "n_layer": 2, "n_head": 2, "n_positions": 32, "n_inner": 24,
    "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_BART = {
    "vocab_size": VOCABULARY, "d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 32,
    "tie_word_embeddings": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1, "forced_eos_token_id": 2,
}  # fmt: skip

CASES = {
    "llama": decoder("Llama"),
    "mistral": decoder("Mistral"),
    "qwen2": decoder("Qwen2"),
    "qwen3": decoder("Qwen3"),
    "gemma": decoder("Gemma"),
    "phi": decoder("Phi"),
    "phi3": decoder("Phi3"),
    "olmo": decoder("Olmo"),
    "gpt-neox": decoder("GPTNeoX"),
    "gpt2": Case(_made("GPT2LMHeadModel", "GPT2Config", **_GPT2), language),
    "gpt-j": Case(_made("GPTJForCausalLM", "GPTJConfig", rotary_dim=4, **_GPT2), language),
    "bloom": decoder("Bloom", n_layer=2, n_head=2),
    "opt": decoder("OPT", ffn_dim=24, word_embed_proj_dim=WIDTH),
    "mixtral": decoder("Mixtral", num_local_experts=3),
    "mamba": decoder("Mamba", exclude=("*.dt_proj", "*.conv1d"), state_size=4),
    "bert": encoder("Bert"),
    "roberta": encoder("Roberta", pad_token_id=1),
    "xlm-roberta": encoder("XLMRoberta", pad_token_id=1),
    "distilbert": encoder("DistilBert", dim=WIDTH, hidden_dim=24, n_layers=2, n_heads=2),
    "albert": encoder("Albert", embedding_size=8),
    "electra": encoder("Electra", embedding_size=8),
    "mpnet": encoder("MPNet", pad_token_id=1),
    "deberta-v2": encoder(
        "DebertaV2", exclude=("*.rel_embeddings",), relative_attention=True, pos_att_type=["p2c", "c2p"]
    ),
    "t5": Case(
        _made(
            "T5ForConditionalGeneration", "T5Config", vocab_size=VOCABULARY, d_model=WIDTH, d_kv=8, d_ff=24,
            num_layers=2, num_heads=2, decoder_start_token_id=0, tie_word_embeddings=False,
        ),
        translated,
    ),
    "bart": Case(_made("BartForConditionalGeneration", "BartConfig", **_BART), translated),
    "whisper": Case(
        _made(
            "WhisperForConditionalGeneration", "WhisperConfig", num_mel_bins=8, max_source_positions=10,
            max_target_positions=32, **{**_BART, "suppress_tokens": None, "begin_suppress_tokens": None},
        ),
        heard,
    ),
    "vit": vision("ViT"),
    "deit": vision("DeiT"),
    "dinov2": vision("Dinov2"),
    "swin": Case(
        _made(
            "SwinForImageClassification", "SwinConfig", image_size=16, patch_size=2, embed_dim=8, depths=[2, 1],
            num_heads=[2, 2], window_size=2,
        ),
        lambda: images(16),
    ),
    "convnext": vision(
        "ConvNext", lambda: images(32), hidden_sizes=[8, 8, 8, 8], depths=[1, 1, 1, 1], num_stages=4, image_size=32
    ),
    "resnet": vision(
        "ResNet", lambda: images(32), embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[2, 2, 2, 2],
        layer_type="basic",
    ),
    "clip": Case(_clip, paired),
    # with a weight that an embedding and a head share
    "gpt2-tied": Case(_made("GPT2LMHeadModel", "GPT2Config", **{**_GPT2, "tie_word_embeddings": True}), language),
    "llama-tied": decoder("Llama", tie_word_embeddings=True),
    "bert-tied": encoder("Bert", head="MaskedLM"),
    "albert-tied": encoder("Albert", head="MaskedLM", embedding_size=8),
    "t5-tied": Case(
        _made(
            "T5ForConditionalGeneration", "T5Config", vocab_size=VOCABULARY, d_model=WIDTH, d_kv=8, d_ff=24,
            num_layers=2, num_heads=2, decoder_start_token_id=0,
        ),
        translated,
    ),
}  # fmt: skip

# Of which less than 0.99 of the parameters is attributed: how much is, and why not more
PARTLY = {
    "gemma": (0.87, "its norms multiply by 1 + weight"),
    "opt": (0.90, "positions are offset in a forward of their own"),
    "bart": (0.78, "embeddings are scaled, and positions offset, in a forward of their own"),
    "whisper": (0.96, "positions are looked up by slicing"),
    "mixtral": (0.32, "its experts are bare parameters of three dimensions"),
    "mamba": (0.87, "dt_proj and conv1d are used without being called"),
    "deberta-v2": (0.86, "relative embeddings are used without being called"),
    "vit": (0.98, "class token and positions are bare parameters"),
    "deit": (0.97, "class token and positions are bare parameters"),
    "dinov2": (0.98, "class token and positions are bare parameters"),
    "convnext": (0.97, "layer_scale_parameter is a bare parameter"),
}
