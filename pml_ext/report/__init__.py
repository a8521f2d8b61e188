"""Pages of results: figures and tables in one HTML file."""

from .page import ReportFigure as ReportFigure
from .page import ReportTable as ReportTable
from .page import draw as draw
from .page import percent as percent
from .page import render as render
