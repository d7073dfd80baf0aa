"""The multiply-adds that memplan blocking reads from models, beside torch's own count.

    python scripts/count_models.py [NAMES]

torch's is that of torch.utils.flop_counter.FlopCounterMode, in a run in which attention
and recurrent layers are composed of matrix products, for it has no formula for what
torch runs in their place on a CPU. Weights are random, and the configurations of U-Net
and of all models of sequences and transformers are small ones. Some need transformers.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from models.googlenet import GoogLeNet
from models.gpt2 import GPT2
from models.mobilenet import MobileNetV3
from models.published import Built, transformer
from models.resnet import ResNet
from models.seq2seq import Seq2Seq, Translator
from models.unet import UNet
from models.vision import build
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from memplan.blocking.run.inventory import ModelLayers
from memplan.blocking.run.models import FLOPS_PER_MAC, layers_of


def _image(pixels: int = 224) -> tuple[torch.Tensor]:
    return (torch.randn(1, 3, pixels, pixels),)


def _words(*shape: int) -> torch.Tensor:
    return torch.randint(1, 100, shape)


# Of transformers: the class, its sizes, and the shapes of its inputs.
OF_TRANSFORMERS: dict[str, tuple[str, dict[str, int], dict[str, Any]]] = {
    "BERT": (
        "BertModel",
        {"vocab_size": 100, "hidden_size": 256, "num_attention_heads": 4},
        {"input_ids": (2, 128)},
    ),
    "LLaMA": (
        "LlamaForCausalLM",
        {"vocab_size": 1000, "hidden_size": 256, "intermediate_size": 688}
        | {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2},
        {"input_ids": (1, 128)},
    ),
    "T5": (
        "T5ForConditionalGeneration",
        {"vocab_size": 100, "d_model": 256, "d_ff": 512, "num_heads": 4, "d_kv": 64},
        {"input_ids": (2, 64), "decoder_input_ids": (2, 48)},
    ),
    "ViT": (
        "ViTModel",
        {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768},
        {"pixel_values": (1, 3, 224, 224)},
    ),
    "Whisper": (
        "WhisperModel",
        {"vocab_size": 100, "d_model": 256, "encoder_layers": 4, "decoder_layers": 4}
        | {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
        | {"encoder_ffn_dim": 1024, "decoder_ffn_dim": 1024, "pad_token_id": 0}
        | {"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
        {"input_features": (1, 80, 3000), "decoder_input_ids": (1, 64)},
    ),
}
BUILDERS: dict[str, Callable[[], Built]] = {
    "ResNet-50": lambda: (ResNet(), _image()),
    "GoogLeNet": lambda: (GoogLeNet(), _image()),
    "DenseNet-121": lambda: (build("densenet121"), _image()),
    "MobileNetV3-Large": lambda: (MobileNetV3(), _image()),
    "U-Net": lambda: (UNet(width=16), _image(128)),
    "GPT-2": lambda: (GPT2(1000, 256, 4, 256, 4), (_words(2, 256),)),
    "nn.Transformer": lambda: (Translator(1000, 256, 3, 4), (_words(2, 48),) * 2),
    "LSTM with attention": lambda: (Seq2Seq(1000, 128), (_words(2, 24),) * 2),
    **{
        name: partial(transformer, *about, attention="sdpa")
        for name, about in OF_TRANSFORMERS.items()
    },
}


@contextmanager
def composed() -> Iterator[None]:
    """While this lasts, attention and recurrent layers are matrix products to torch."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with (
            sdpa_kernel(SDPBackend.MATH),
            torch.backends.mkldnn.flags(enabled=False),
        ):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def torchs(model: nn.Module, inputs: tuple[Any, ...]) -> int:
    """Multiply-adds by torch's counter alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about TF32, of which there is none here
        with torch.no_grad(), composed(), FlopCounterMode(display=False) as counter:
            model(*inputs)
    return counter.get_total_flops() // FLOPS_PER_MAC


def counted(name: str) -> tuple[ModelLayers, int]:
    """What memplan reads from a model, and torch's count."""
    torch.manual_seed(0)
    model, inputs = BUILDERS[name]()
    model.eval()
    return layers_of(model, inputs), torchs(model, inputs)


def row(name: str) -> str:
    """One of the table, in Markdown."""
    found, macs = counted(name)
    left_out = found.share(sum(one.macs or 0 for one in found.left_out))
    unknown = sum(one.macs is None for one in found.left_out)
    cells = (
        *(name, str(len(found.layers)), f"{found.counted:,}", f"{macs:,}"),
        *(f"{found.counted / macs - 1:+.3%}", f"{left_out:.2%}", str(unknown)),
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BUILDERS))
    args = parser.parse_args()
    for name in args.names:
        if name not in BUILDERS:
            parser.error(f"there is no model {name!r}")
    print("| model | layers | memplan | torch | difference | left out | unknown |")
    print("| --- |" + " ---: |" * 6)
    for name in args.names or BUILDERS:
        print(row(name), flush=True)


if __name__ == "__main__":
    main()
