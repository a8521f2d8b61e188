"""Files: atomic writing, locks, reading of JSON and TOML; checksums in :mod:`pml_ext_train.files.checksums`."""

from .atomic import DamagedError as DamagedError
from .atomic import check_writable as check_writable
from .atomic import final_path as final_path
from .atomic import locked_folder as locked_folder
from .atomic import read_json as read_json
from .atomic import read_toml as read_toml
from .atomic import reading as reading
from .atomic import toml_value as toml_value
from .atomic import write_atomically as write_atomically
from .atomic import write_json as write_json
from .atomic import write_text as write_text
from .atomic import writing as writing
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
