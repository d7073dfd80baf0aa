"""Models that memplan chunk is measured on and was not built for, with random weights:
of transformers, timm and diffusers, with activations of 50 MB and more.

Each is cut to one or two layers, as the following ones need no more, and keeps its own
operators, shapes and attention. timm imports torchvision; see models/wild.py.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from models.published import ENCODED, UNCACHED, Built, transformer

Shapes = Mapping[str, tuple[int, ...]]
TWO = {"num_hidden_layers": 2}
WIDE = TWO | {"hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048}
WORDS = WIDE | {"vocab_size": 1000, "max_position_embeddings": 4096}
DECODER = WORDS | {"num_key_value_heads": 4, "use_cache": False}
PADDED = {"pad_token_id": 0}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 512}
LONG: Shapes = {"input_ids": (1, 4096)}
PICTURES: Shapes = {"pixel_values": (4, 3, 384, 384)}

# The class, the sizes of its configuration, the shapes of its inputs, and options.
OF_TRANSFORMERS: dict[str, tuple[str, Mapping[str, Any], Shapes, Mapping[str, Any]]] = {
    "bert": ("BertModel", WORDS, LONG, ENCODED),
    "albert": ("AlbertModel", WORDS | {"embedding_size": 128}, LONG, ENCODED),
    "distilbert": (
        "DistilBertModel",
        {"vocab_size": 1000, "dim": 512, "n_heads": 8, "hidden_dim": 2048}
        | {"n_layers": 2, "max_position_embeddings": 4096},
        LONG,
        ENCODED,
    ),
    "deberta": ("DebertaV2Model", WORDS, {"input_ids": (1, 768)}, ENCODED),
    "modernbert": ("ModernBertModel", WORDS | PADDED, LONG, ENCODED),
    "esm": (
        "EsmModel",
        WORDS | PADDED | {"max_position_embeddings": 4098},
        LONG,
        ENCODED,
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        {"n_embd": 512, "n_head": 8, "n_layer": 2, "n_positions": 2048},
        {"input_ids": (1, 1024)},
        UNCACHED,
    ),
    "gpt_neo": (
        "GPTNeoModel",
        {"vocab_size": 1000, "hidden_size": 512, "num_heads": 8, "num_layers": 2}
        | {"attention_types": [[["global", "local"], 1]]},
        {"input_ids": (1, 2048)},
        UNCACHED,
    ),
    "bloom": (
        "BloomModel",
        {"vocab_size": 1000, "hidden_size": 512, "n_layer": 2, "n_head": 8},
        {"input_ids": (1, 2048)},
        UNCACHED,
    ),
    "opt": (
        "OPTModel",
        WORDS | {"ffn_dim": 2048, "word_embed_proj_dim": 512},
        LONG,
        UNCACHED,
    ),
    "llama": ("LlamaModel", DECODER, LONG, UNCACHED),
    "mistral": ("MistralModel", DECODER | {"sliding_window": 1024}, LONG, UNCACHED),
    "qwen2": ("Qwen2Model", DECODER, LONG, UNCACHED),
    "qwen3_moe": (
        "Qwen3MoeModel",
        DECODER | EXPERTS | {"num_experts": 8, "head_dim": 64},
        {"input_ids": (1, 2048)},
        UNCACHED,
    ),
    "mixtral": (
        "MixtralModel",
        DECODER | {"num_local_experts": 4, "intermediate_size": 1024},
        {"input_ids": (1, 2048)},
        UNCACHED,
    ),
    "gemma3": (
        "Gemma3TextModel",
        DECODER | {"sliding_window": 512, "head_dim": 64},
        LONG,
        UNCACHED,
    ),
    "phi3": ("Phi3Model", DECODER | PADDED, LONG, UNCACHED),
    "olmo2": ("Olmo2Model", DECODER, LONG, UNCACHED),
    "stablelm": ("StableLmModel", DECODER, LONG, UNCACHED),
    "mamba": (
        "MambaModel",
        TWO | {"vocab_size": 1000, "hidden_size": 256},
        {"input_ids": (1, 512)},
        UNCACHED,
    ),
    "mamba2": (
        "Mamba2Model",
        TWO
        | {"vocab_size": 1000, "hidden_size": 512, "num_heads": 16, "head_dim": 64}
        | {"state_size": 64, "n_groups": 1, "chunk_size": 128},
        {"input_ids": (1, 2048)},
        UNCACHED,
    ),
    "bart": (
        "BartModel",
        {"vocab_size": 1000, "d_model": 512, "encoder_layers": 1, "decoder_layers": 1}
        | {"encoder_attention_heads": 8, "decoder_attention_heads": 8}
        | {"encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048}
        | {"max_position_embeddings": 4096},
        {"input_ids": (1, 4096), "decoder_input_ids": (1, 4096)},
        UNCACHED,
    ),
    "t5": (
        "T5Model",
        {"vocab_size": 1000, "num_layers": 1, "num_decoder_layers": 1},
        {"input_ids": (1, 1024), "decoder_input_ids": (1, 1024)},
        UNCACHED,
    ),
    "whisper": (
        ".models.whisper.modeling_whisper.WhisperEncoder",
        {"d_model": 512, "encoder_layers": 2, "encoder_attention_heads": 8}
        | {"encoder_ffn_dim": 2048, "max_source_positions": 3000},
        {"input_features": (1, 80, 6000)},
        ENCODED,
    ),
    "wav2vec2": ("Wav2Vec2Model", WIDE, {"input_values": (1, 160_000)}, ENCODED),
    "hubert": ("HubertModel", WIDE, {"input_values": (1, 160_000)}, ENCODED),
    "clip": (
        "CLIPVisionModel",
        WIDE | {"image_size": 384, "patch_size": 16},
        PICTURES,
        ENCODED,
    ),
    "siglip": (
        "SiglipVisionModel",
        WIDE | {"image_size": 384, "patch_size": 16},
        PICTURES,
        ENCODED,
    ),
    "dinov2": (
        "Dinov2Model",
        WIDE | {"image_size": 384, "patch_size": 16},
        PICTURES,
        ENCODED,
    ),
    "vit_msn": (
        "ViTMSNModel",
        WIDE | {"image_size": 384, "patch_size": 16},
        PICTURES,
        ENCODED,
    ),
    "segformer": (
        "SegformerModel",
        {"depths": [1, 1, 1, 1]},
        {"pixel_values": (1, 3, 640, 640)},
        ENCODED,
    ),
    "dpt": (
        "DPTForDepthEstimation",
        WIDE
        | {"num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3]}
        | {
            "image_size": 256,
            "is_hybrid": False,
            "neck_hidden_sizes": [48, 96, 192, 384],
        },
        {"pixel_values": (1, 3, 256, 256)},
        ENCODED,
    ),
}
# Those whose attention is written out, or that have none.
WRITTEN_OUT = {"deberta", "gpt_neo", "bloom", "mamba", "mamba2"}
OF_TIMM: dict[str, tuple[int, int]] = {  # batch, pixels
    "resnet50": (8, 224),
    "efficientnet_b0": (4, 224),
    "regnety_016": (8, 224),
    "convnext_tiny": (4, 224),
    "mobilevit_s": (4, 256),
    "xcit_tiny_12_p8_224": (8, 224),
    "mixer_s16_224": (32, 224),
    "swin_tiny_patch4_window7_224": (4, 224),
    "hrnet_w18_small": (8, 224),
    "vit_small_patch16_224": (32, 224),
    "maxvit_tiny_tf_224": (2, 224),
    "pvt_v2_b0": (8, 224),
}


class Timed(nn.Module):
    """A denoiser at a fixed time."""

    def __init__(self, inner: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.inner, self.names = inner, names

    def forward(self, x: torch.Tensor, *given: torch.Tensor) -> Any:
        time = torch.full((len(x),), 10, device=x.device)
        named = dict(zip(self.names, (time, *given), strict=True))
        return self.inner(x, **named, return_dict=False)[0]


def _of_transformers(name: str) -> Built:
    kind, sizes, shapes, options = OF_TRANSFORMERS[name]
    attention = "eager" if name in WRITTEN_OUT else "sdpa"
    return transformer(kind, sizes, shapes, options, attention)


def _of_timm(name: str) -> Built:
    batch, pixels = OF_TIMM[name]
    model = importlib.import_module("timm").create_model(name).eval()
    return model, (torch.randn(batch, 3, pixels, pixels),)


def _denoiser(
    kind: str,
    sizes: Mapping[str, Any],
    noise: tuple[int, ...],
    given: Mapping[str, tuple[int, ...] | torch.Tensor],
) -> Built:
    inner = getattr(importlib.import_module("diffusers"), kind)(**sizes)
    rest = tuple(
        torch.randn(each) if isinstance(each, tuple) else each
        for each in given.values()
    )
    name = "timestep"
    return Timed(inner, (name, *given)).eval(), (torch.randn(noise), *rest)


def _autoencoder(part: str, shape: tuple[int, ...]) -> Built:
    module = importlib.import_module("diffusers")
    whole = module.AutoencoderKL(
        block_out_channels=(64, 128),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
    )
    return getattr(whole, part).eval(), (torch.randn(shape),)


DENOISERS: dict[str, tuple[Any, ...]] = {
    "unet2d": (
        "UNet2DModel",
        {"block_out_channels": (128, 256), "layers_per_block": 1}
        | {"down_block_types": ("DownBlock2D", "AttnDownBlock2D")}
        | {"up_block_types": ("AttnUpBlock2D", "UpBlock2D")},
        (2, 3, 64, 64),
        {},
    ),
    "unet2d_condition": (
        "UNet2DConditionModel",
        {"block_out_channels": (128, 256), "layers_per_block": 1}
        | {"cross_attention_dim": 256}
        | {"down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D")}
        | {"up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D")},
        (2, 4, 64, 64),
        {"encoder_hidden_states": (2, 77, 256)},
    ),
    "unet3d_condition": (
        "UNet3DConditionModel",
        {"block_out_channels": (64, 128), "layers_per_block": 1}
        | {"cross_attention_dim": 128, "norm_num_groups": 32}
        | {"down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D")}
        | {"up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D")},
        (1, 4, 8, 32, 32),
        {"encoder_hidden_states": (1, 77, 128)},
    ),
    "dit": (
        "DiTTransformer2DModel",
        {"num_attention_heads": 8, "attention_head_dim": 64, "num_layers": 2}
        | {"sample_size": 64, "in_channels": 4, "out_channels": 8},
        (4, 4, 64, 64),
        {"class_labels": torch.arange(4)},
    ),
    "sd3": (
        "SD3Transformer2DModel",
        {"num_attention_heads": 8, "attention_head_dim": 64, "num_layers": 2}
        | {"sample_size": 64, "caption_projection_dim": 512, "in_channels": 16}
        | {"joint_attention_dim": 256, "pooled_projection_dim": 256},
        (4, 16, 64, 64),
        {"encoder_hidden_states": (4, 77, 256), "pooled_projections": (4, 256)},
    ),
    "pixart": (
        "PixArtTransformer2DModel",
        {"num_attention_heads": 8, "attention_head_dim": 64, "num_layers": 2}
        | {"sample_size": 64, "cross_attention_dim": 512, "caption_channels": 256},
        (2, 4, 64, 64),
        {"encoder_hidden_states": (2, 77, 256)},
    ),
}
AUTOENCODERS = {"vae_encoder": ("encoder", (1, 3, 256, 256))}
AUTOENCODERS |= {"vae_decoder": ("decoder", (1, 4, 96, 96))}

BUILDERS: dict[str, Callable[[], Built]] = {
    **{name: partial(_of_transformers, name) for name in OF_TRANSFORMERS},
    **{name: partial(_of_timm, name) for name in OF_TIMM},
    **{name: partial(_denoiser, *sizes) for name, sizes in DENOISERS.items()},
    **{name: partial(_autoencoder, *sizes) for name, sizes in AUTOENCODERS.items()},
}
