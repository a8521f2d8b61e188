from .measurements import Measurement as Measurement, add_measurement as add_measurement
from .trained_network import LoadedRun as LoadedRun
