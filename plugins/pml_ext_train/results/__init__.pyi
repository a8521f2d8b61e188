from .measurements import Measurement as Measurement
from .measurements import add_measurement as add_measurement
from .trained_network import LoadedRun as LoadedRun
