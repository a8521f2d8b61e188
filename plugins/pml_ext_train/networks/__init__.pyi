from .blocks import last_blocks as last_blocks
from .hf import HF as HF, image_size_of as image_size_of
from .memory_format import use_channels_last as use_channels_last
from .naming import named_trunk as named_trunk
from .network import By as By, Network as Network, Preprocessing as Preprocessing
from .pretrained import pretrained_images as pretrained_images
from .texts import text_encoder as text_encoder
from .trunks import output_size as output_size
