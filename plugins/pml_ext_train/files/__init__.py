"""Files: atomic writing, locks, reading of JSON and TOML; checksums in :mod:`pml_ext_train.files.checksums`."""

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
