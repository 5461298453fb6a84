#!/usr/bin/env python3
"""Builds layer.safetensors, the input of the README's first command.

    python3 examples/make_layer.py tests/golden/gdn_mix_hk2_hv4_t17.safetensors examples/layer.safetensors

The source is a golden file of a layer between its projections (see tests/golden/README.md): what `keyhead gdn` reads is copied,
what transformers computes from it in float64 stays there, and the tests compare with it. The value heads are in grouped
order. Needs numpy and safetensors.
"""

import os
import sys

from safetensors import safe_open
from safetensors.numpy import save_file

INPUTS = [
    "qkv",
    "a",
    "b",
    "z",
    "conv_weight",
    "conv_state_in",
    "A_log",
    "dt_bias",
    "norm_weight",
    "initial_state_i8",
    "initial_state_scale",
]


def main(source, target):
    with safe_open(source, "np") as file:
        layer = {name: file.get_tensor(name) for name in INPUTS}
        origin = file.metadata()["source"]
    # One entry: the writer puts several in any order, and the bytes should be the same each time.
    save_file(layer, target, metadata={"source": f"{os.path.basename(source)}, by {origin}"})


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
