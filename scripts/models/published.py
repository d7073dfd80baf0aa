"""Models of transformers and diffusers with random weights, built without a network."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

Built = tuple[nn.Module, tuple[Any, ...]]
UNCACHED = {"use_cache": False, "return_dict": False}
ENCODED = {"return_dict": False}


class Named(nn.Module):
    """A model that is given its inputs by name; with options, its first result."""

    def __init__(
        self, model: nn.Module, names: Sequence[str], options: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self.model, self.names, self.options = model, names, options

    def forward(self, *given: torch.Tensor) -> Any:
        named = dict(zip(self.names, given, strict=True))
        found = self.model(**named, **self.options)
        return found[0] if self.options else found


def transformer(
    name: str,
    sizes: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    options: Mapping[str, Any] | None = None,
    attention: str = "eager",
) -> Built:
    """A model of transformers in eval mode, and its inputs.

    name: its class, behind its module where that is not the package. sizes: of its
    configuration. shapes: of the inputs by name; those that end with ids are words.
    """
    module, _, name = name.rpartition(".")
    kind = getattr(importlib.import_module(f"transformers{module}"), name)
    config = kind.config_class(**sizes)
    config._attn_implementation = attention
    inputs = tuple(
        torch.randint(1, 100, shape) if own.endswith("ids") else torch.randn(shape)
        for own, shape in shapes.items()
    )
    return Named(kind(config), tuple(shapes), options or {}).eval(), inputs


# What chunking is measured on: one layer or block each, of a size.


def gpt2(length: int, attention: str) -> Built:
    """A GPT-2 decoder, 768 wide."""
    sizes = {"vocab_size": 64, "n_positions": length, "n_layer": 1, "use_cache": False}
    shapes = {"inputs_embeds": (1, length, 768)}
    return transformer("GPT2Model", sizes, shapes, UNCACHED, attention)


def llama(length: int, attention: str) -> Built:
    """A LLaMA decoder with grouped queries, 768 wide."""
    sizes = {"vocab_size": 64, "hidden_size": 768, "intermediate_size": 2048}
    sizes |= {"num_hidden_layers": 1, "num_attention_heads": 12, "use_cache": False}
    sizes |= {"num_key_value_heads": 4, "max_position_embeddings": length}
    shapes = {"inputs_embeds": (1, length, 768)}
    return transformer("LlamaModel", sizes, shapes, UNCACHED, attention)


def vit(pixels: int, attention: str) -> Built:
    """A ViT-Base on square pictures, patches of 16."""
    sizes = {"image_size": pixels, "num_hidden_layers": 1}
    shapes = {"pixel_values": (1, 3, pixels, pixels)}
    return transformer("ViTModel", sizes, shapes, ENCODED, attention)


def whisper(length: int, attention: str) -> Built:
    """Whisper's encoder, 512 wide."""
    sizes = {"d_model": 512, "encoder_layers": 1, "encoder_attention_heads": 8}
    sizes |= {"encoder_ffn_dim": 2048, "max_source_positions": length}
    name = ".models.whisper.modeling_whisper.WhisperEncoder"
    shapes = {"input_features": (1, 80, 2 * length)}
    return transformer(name, sizes, shapes, ENCODED, attention)


def t5(length: int, attention: str) -> Built:
    """T5's encoder, 512 wide, with relative position bias."""
    sizes = {"vocab_size": 64, "num_layers": 1, "use_cache": False}
    shapes = {"inputs_embeds": (1, length, 512)}
    return transformer("T5EncoderModel", sizes, shapes, ENCODED, attention)


def esmfold(length: int, attention: str) -> Built:
    """ESMFold's triangular self-attention block: sequence 256, pair 128 wide."""
    from transformers.models.esm.configuration_esm import TrunkConfig
    from transformers.models.esm.modeling_esmfold import (
        EsmFoldTriangularSelfAttentionBlock,
    )

    config = TrunkConfig(
        sequence_state_dim=256,
        pairwise_state_dim=128,
        sequence_head_width=32,
        pairwise_head_width=32,
    )
    inputs = torch.randn(1, length, 256), torch.randn(1, length, length, 128)
    return EsmFoldTriangularSelfAttentionBlock(config).eval(), inputs


class Denoiser(nn.Module):
    """A UNet2DCondition at a fixed time."""

    def __init__(self, unet: nn.Module) -> None:
        super().__init__()
        self.unet = unet

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        time = torch.full((1,), 10, device=x.device)
        return self.unet(x, time, context, return_dict=False)[0]


def unet(latents: int, attention: str) -> Built:
    """Stable Diffusion's UNet of two levels, 64 and 128 channels."""
    from diffusers import UNet2DConditionModel
    from diffusers.models.attention_processor import AttnProcessor, AttnProcessor2_0

    model = UNet2DConditionModel(
        sample_size=latents,
        block_out_channels=(64, 128),
        layers_per_block=1,
        cross_attention_dim=128,
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        norm_num_groups=32,
    )
    sdpa = attention == "sdpa"
    model.set_attn_processor(AttnProcessor2_0() if sdpa else AttnProcessor())
    inputs = torch.randn(1, 4, latents, latents), torch.randn(1, 77, 128)
    return Denoiser(model).eval(), inputs


BUILDERS: dict[str, Callable[[int, str], Built]] = {
    each.__name__: each for each in (gpt2, llama, vit, whisper, t5, esmfold, unet)
}
