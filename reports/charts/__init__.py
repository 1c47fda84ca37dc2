"""Charts of a report: drawn by altair as SVG, one file each."""
