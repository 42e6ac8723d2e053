"""Tables and charts as HTML that needs nothing else: no script, no optional library. What notebooks show, and the page
of a single run. The pages of `report/` share the style; their charts, which answer a mouse, are described there.
"""

from repairability._html.charts import dots, heatmap, lines
from repairability._html.fragments import STYLE, code, table, view
from repairability._html.page import document, section

__all__ = ["STYLE", "code", "document", "dots", "heatmap", "lines", "section", "table", "view"]
