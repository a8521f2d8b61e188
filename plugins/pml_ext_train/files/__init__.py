"""Files: atomic writing, locks, reading of JSON and TOML; checksums in :mod:`pml_ext_train.files.checksums`."""

from .checksums import sha256_of as sha256_of
from .stat import MISSING as MISSING
from .stat import FileStat as FileStat
from .stat import as_spelled as as_spelled
from .stat import composed as composed
from .stat import doubt_about as doubt_about
from .stat import file_stat as file_stat
from .stat import is_inside as is_inside
from .stat import path_bytes as path_bytes
from .stat import utf8_of as utf8_of
from .writing import DamagedError as DamagedError
from .writing import check_writable as check_writable
from .writing import final_path as final_path
from .writing import locked_folder as locked_folder
from .writing import read_json as read_json
from .writing import read_toml as read_toml
from .writing import reading as reading
from .writing import toml_value as toml_value
from .writing import write_atomically as write_atomically
from .writing import write_json as write_json
from .writing import write_text as write_text
from .writing import writing as writing
