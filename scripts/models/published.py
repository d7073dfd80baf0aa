"""Models with random weights on which chunking is measured, built without a network.

Each is a function of a size that returns the module, in eval mode, and its inputs:
`BUILDERS[name](size)`. They need the packages transformers and diffusers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

Built = tuple[nn.Module, tuple[Any, ...]]


class Hidden(nn.Module):
    """A transformer that is given embeddings, and gives its last hidden state."""

    def __init__(self, model: nn.Module, name: str = "inputs_embeds") -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(**{self.name: x}, **self.options)[0]

    options: dict[str, Any] = {}  # noqa: RUF012 - one for each subclass


class Uncached(Hidden):
    """A decoder without its cache."""

    options = {"use_cache": False, "return_dict": False}  # noqa: RUF012


class Encoded(Hidden):
    """An encoder."""

    options = {"return_dict": False}  # noqa: RUF012


def gpt2(length: int = 2048, layers: int = 1, attention: str = "eager") -> Built:
    """A GPT-2 decoder, 768 wide."""
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(
        vocab_size=64, n_positions=length, n_layer=layers, use_cache=False
    )
    config._attn_implementation = attention
    return Uncached(GPT2Model(config)).eval(), (torch.randn(1, length, 768),)


def llama(length: int = 2048, layers: int = 1, attention: str = "eager") -> Built:
    """A LLaMA decoder with grouped queries, 768 wide."""
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        vocab_size=64,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=layers,
        num_attention_heads=12,
        num_key_value_heads=4,
        max_position_embeddings=length,
        use_cache=False,
    )
    config._attn_implementation = attention
    return Uncached(LlamaModel(config)).eval(), (torch.randn(1, length, 768),)


def vit(pixels: int = 768, layers: int = 1, attention: str = "eager") -> Built:
    """A ViT-Base on square pictures, patches of 16."""
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(image_size=pixels, num_hidden_layers=layers)
    config._attn_implementation = attention
    model = Encoded(ViTModel(config, add_pooling_layer=False), "pixel_values")
    return model.eval(), (torch.randn(1, 3, pixels, pixels),)


def whisper(length: int = 1500, layers: int = 1, attention: str = "eager") -> Built:
    """Whisper's encoder, 512 wide."""
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(
        d_model=512,
        encoder_layers=layers,
        encoder_attention_heads=8,
        encoder_ffn_dim=2048,
        max_source_positions=length,
    )
    config._attn_implementation = attention
    model = Encoded(WhisperEncoder(config), "input_features")
    return model.eval(), (torch.randn(1, config.num_mel_bins, 2 * length),)


def t5(length: int = 2048, layers: int = 1, attention: str = "eager") -> Built:
    """T5's encoder, 512 wide, with relative position bias."""
    from transformers import T5Config, T5EncoderModel

    config = T5Config(vocab_size=64, num_layers=layers, use_cache=False)
    config._attn_implementation = attention
    return Encoded(T5EncoderModel(config)).eval(), (torch.randn(1, length, 512),)


class Pair(nn.Module):
    """The pair stack of a triangular block: what AlphaFold's Evoformer does to z."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, s: torch.Tensor, z: torch.Tensor) -> Any:
        return self.block(s, z)


def esmfold(length: int = 128, layers: int = 1, attention: str = "eager") -> Built:
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
    block = EsmFoldTriangularSelfAttentionBlock(config)
    s, z = torch.randn(1, length, 256), torch.randn(1, length, length, 128)
    return Pair(block).eval(), (s, z)


class Denoiser(nn.Module):
    """A UNet2DCondition at a fixed time."""

    def __init__(self, unet: nn.Module) -> None:
        super().__init__()
        self.unet = unet

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        time = torch.full((1,), 10, device=x.device)
        return self.unet(x, time, context, return_dict=False)[0]


def unet(latents: int = 64, layers: int = 1, attention: str = "eager") -> Built:
    """Stable Diffusion's UNet of two levels, 64 and 128 channels."""
    from diffusers import UNet2DConditionModel
    from diffusers.models.attention_processor import AttnProcessor, AttnProcessor2_0

    model = UNet2DConditionModel(
        sample_size=latents,
        block_out_channels=(64, 128),
        layers_per_block=layers,
        cross_attention_dim=128,
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        norm_num_groups=32,
    )
    sdpa = attention == "sdpa"
    model.set_attn_processor(AttnProcessor2_0() if sdpa else AttnProcessor())
    inputs = torch.randn(1, 4, latents, latents), torch.randn(1, 77, 128)
    return Denoiser(model).eval(), inputs


BUILDERS: dict[str, Callable[..., Built]] = {
    "gpt2": gpt2,
    "llama": llama,
    "vit": vit,
    "whisper": whisper,
    "t5": t5,
    "esmfold": esmfold,
    "unet": unet,
}
