from . import figures as figures
from .page import ReportFigure as ReportFigure
from .page import ReportTable as ReportTable
from .page import draw as draw
from .page import percent as percent
from .page import render as render
