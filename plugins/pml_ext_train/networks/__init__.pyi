from . import trunks as trunks
from .blocks import last_blocks as last_blocks
from .cut import HEAD as HEAD, activation_shape as activation_shape, frozen_stem as frozen_stem
from .embedders import whitened_components as whitened_components
from .hf import HF as HF, hf_trunk as hf_trunk, image_size_of as image_size_of
from .memory_format import use_channels_last as use_channels_last
from .modes import is_batch_norm as is_batch_norm
from .naming import named_trunk as named_trunk
from .network import (
    By as By,
    Network as Network,
    Normalization as Normalization,
    Preprocessing as Preprocessing,
    VectorInput as VectorInput,
)
from .pretrained import (
    RANDOM as RANDOM,
    PretrainedImages as PretrainedImages,
    add_lora as add_lora,
    is_file as is_file,
    is_pretrained as is_pretrained,
    load_weights as load_weights,
    merged_lora as merged_lora,
    pretrained_images as pretrained_images,
    weights_to_choose as weights_to_choose,
)
from .texts import text_encoder as text_encoder
from .trunks import freeze as freeze, output_size as output_size, parts_named as parts_named
