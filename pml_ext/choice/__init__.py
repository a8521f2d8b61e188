"""``pml-ext train --images FOLDER``: what is trained on somebody's own images is chosen by trials."""

from .candidates import SMALL as SMALL
from .candidates import Choice as Choice
from .interrupted import begun_folder as begun_folder
from .interrupted import begun_run as begun_run
from .interrupted import keep_choice as keep_choice
from .interrupted import kept_choice as kept_choice
from .selection import check_settings as check_settings
from .selection import choose as choose
from .selection import why_not as why_not
