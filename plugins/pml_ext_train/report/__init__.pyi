from . import figures as figures
from .contact_sheets import CELL as CELL, contact_sheet as contact_sheet
from .figures import (
    BLUE as BLUE,
    GRAY as GRAY,
    RIGHT as RIGHT,
    WRONG as WRONG,
    Cell as Cell,
    answer as answer,
    epoch_curves as epoch_curves,
    gallery as gallery,
)
from .fonts import drawable as drawable, font_families as font_families, short_name as short_name
from .page import (
    ReportFigure as ReportFigure,
    ReportTable as ReportTable,
    draw as draw,
    percent as percent,
    render as render,
)
from .pictures import PictureReader as PictureReader
from .projection import COLORS as COLORS, SHAPES as SHAPES, flattened as flattened, mark as mark
