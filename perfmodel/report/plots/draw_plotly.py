"""Draw a described figure with Plotly (the extra ``interactive``): a page to point and zoom in.

The page holds the library, and asks no other machine for anything.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.figures import INK, SHADES, SOFT, WHITE, ink_on, shade
from perfmodel.report.plots.describe import (
    Axis,
    Band,
    Bars,
    Cells,
    Line,
    Mark,
    Panel,
    Points,
    Text,
    legend_of,
)

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from perfmodel.report.plots.figure import Plot

INCH = 200
"""Pixels of a figure's inch: what prints at 7 pt is read on a screen, too."""
POINT = INCH / 72
SYMBOLS = {
    "circle": "circle",
    "square": "square",
    "diamond": "diamond",
    "triangle": "triangle-up",
    "down": "triangle-down",
    "cross": "x",
}
FONT = "DejaVu Sans, Verdana, sans-serif"
SIZE, LABEL = 14, 16  # [px]
CONFIG = {"displaylogo": False, "responsive": True}


def draw(plot: Plot) -> Figure:
    """Return the figure as Plotly has it."""
    from plotly.graph_objects import Figure

    figure = Figure()
    total, gap, top = sum(panel.height for panel in plot.panels), 0.16, 1.0
    room = 1.0 - gap * (len(plot.panels) - 1)
    keyed = {id(mark) for mark in legend_of(plot.panels)}
    for number, panel in enumerate(plot.panels, 1):
        bottom = top - room * panel.height / total
        end = "" if number == 1 else str(number)
        figure.update_layout(
            {
                f"xaxis{end}": _axis(panel.x, f"y{end}"),
                f"yaxis{end}": _axis(panel.y, f"x{end}") | {"domain": [max(bottom, 0.0), top]},
            }
        )
        if panel.square:
            figure.update_layout({f"yaxis{end}": {"scaleanchor": f"x{end}", "constrain": "domain"}})
        for mark in panel.marks:
            _draw_mark(figure, panel, mark, end, id(mark) in keyed)
        top = bottom - gap
    figure.update_layout(
        template="none",
        font={"family": FONT, "size": SIZE, "color": INK},
        title={"text": _plain(plot.title), "x": 0.01, "font": {"size": LABEL}}
        if plot.title
        else None,
        paper_bgcolor=WHITE,
        plot_bgcolor=WHITE,
        barmode="overlay",
        hovermode="closest",
        height=INCH * plot.height,
        legend={"orientation": "h", "yref": "container", "yanchor": "bottom", "y": 0.0, "x": 0.0},
        margin={"l": 10, "r": 20, "t": 50 if plot.title else 20, "b": 40 + 22 * bool(keyed)},
        meta={"kind": plot.kind, "notes": list(plot.notes)},
    )
    return figure


def write(plot: Plot, path: Path) -> None:
    """Write a page that needs no network; equal figures are equal files."""
    text = draw(plot).to_html(
        include_plotlyjs=True,
        include_mathjax=False,
        div_id="figure",
        config=CONFIG,
        default_width=f"{INCH * plot.width:.0f}px",
        default_height=f"{INCH * plot.height:.0f}px",
    )
    name = _plain(plot.title or f"perfmodel: {plot.kind}")
    head = f'<meta charset="utf-8" /><title>{name}</title>'
    text = text.replace('<meta charset="utf-8" />', head, 1).replace(
        "<html>", '<html lang="en">', 1
    )
    said = "".join(f"<p>{_plain(note)}</p>" for note in plot.notes)
    foot = f'<div style="font: 14px {FONT}; color: {INK}">{said}</div></body>'
    path.write_text(
        text.replace("</body>", foot, 1) if "</body>" in text else text, encoding="utf-8"
    )


def _plain(text: str) -> str:
    """Return text as it is where Plotly and pages read markup."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("\n", "<br>")


def _axis(axis: Axis, anchor: str) -> dict[str, Any]:
    ends = [axis.low / axis.factor, axis.high / axis.factor]
    if axis.scale == "log":
        ends = [math.log10(end) for end in ends]
    return {
        "type": "log" if axis.scale == "log" else "linear",
        "range": ends,
        "tickvals": [at / axis.factor for at, _ in axis.ticks],
        "ticktext": [_plain(text) for _, text in axis.ticks],
        "title": {"text": _plain(axis.title), "font": {"size": LABEL}, "standoff": 8},
        "ticks": "" if axis.scale == "category" else "outside",
        "ticklen": 5,
        "tickcolor": INK,
        "linecolor": INK,
        "showline": True,
        "showgrid": False,
        "zeroline": False,
        "automargin": True,
        "anchor": anchor,
    }


def _in(axis: Axis, values: Any) -> list[float]:
    found: list[float] = (np.asarray(values, float) / axis.factor).tolist()
    return found


def _draw_mark(figure: Figure, panel: Panel, mark: Mark, end: str, keyed: bool) -> None:
    x, y = panel.x, panel.y
    about: dict[str, Any] = {"xaxis": f"x{end}", "yaxis": f"y{end}", "showlegend": keyed}
    match mark:
        case Points():
            about |= {"name": _plain(mark.label), "legendgroup": mark.label}
            _draw_points(figure, x, y, mark, about)
        case Line():
            figure.add_scatter(
                x=_in(x, mark.x), y=_in(y, mark.y), mode="lines", hoverinfo="skip",
                name=_plain(mark.label), legendgroup=mark.label,
                line={
                    "color": mark.colour, "width": mark.width * POINT * 0.8,
                    "dash": "dash" if mark.dashed else "solid",
                },
                **about,
            )  # fmt: skip
        case Band():
            figure.add_scatter(
                x=[*_in(x, mark.x), *_in(x, mark.x)[::-1]],
                y=[*_in(y, mark.low), *_in(y, mark.high)[::-1]],
                fill="toself", fillcolor=mark.colour, line={"width": 0}, mode="lines",
                hoverinfo="skip", name=_plain(mark.label), **about,
            )  # fmt: skip
        case Bars():
            _draw_bars(figure, x, y, mark, about)
        case Cells():
            _draw_cells(figure, x, y, mark, about)
        case Text():
            _draw_text(figure, x, y, mark, end)


def _draw_points(figure: Figure, x: Axis, y: Axis, mark: Points, about: dict[str, Any]) -> None:
    up = _in(y, mark.y)
    band = {}
    if len(mark.low):
        band["error_y"] = {
            "type": "data",
            "array": [b - a for a, b in zip(up, _in(y, mark.high), strict=True)],
            "arrayminus": [b - a for a, b in zip(_in(y, mark.low), up, strict=True)],
            "width": 0,
            "thickness": 1,
            "color": mark.colour,
        }
    sizes = np.asarray(mark.size, float) * POINT
    line = {"color": mark.colour, "width": 1.5 if mark.hollow else 0}
    texts = [_plain(text) for text in mark.texts]
    figure.add_scatter(
        x=_in(x, mark.x),
        y=up,
        mode="markers",
        marker={
            "symbol": SYMBOLS[mark.marker],
            "size": sizes.tolist(),
            "color": WHITE if mark.hollow else mark.colour,
            "opacity": mark.alpha,
            "line": line,
        },
        text=texts or None,
        hovertemplate=_hover(x, y, bool(texts)),
        **band,
        **about,
    )


def _hover(x: Axis, y: Axis, texts: bool) -> str:
    parts = ["%{text}"] * texts
    parts += [f"{_plain(x.title)}: %{{x:.4g}}", f"{_plain(y.title)}: %{{y:.4g}}"]
    return "<br>".join(parts)


def _draw_bars(figure: Figure, x: Axis, y: Axis, mark: Bars, about: dict[str, Any]) -> None:
    names = [_plain(str(y.category(at))) for at in mark.at]
    line = {"color": WHITE, "width": 1 if mark.edge else 0}
    pattern = {"shape": "/", "fgcolor": WHITE, "bgcolor": mark.colour, "solidity": 0.3, "size": 7}
    figure.add_bar(
        orientation="h",
        y=list(mark.at),
        x=_in(x, mark.length),
        base=_in(x, mark.start),
        width=mark.height,
        name=_plain(mark.label),
        legendgroup=mark.label,
        marker={"color": mark.colour, "line": line, "pattern": pattern if mark.hatch else None},
        text=list(mark.texts) or None,
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        textfont={"color": ink_on(mark.colour)},
        customdata=names,
        hovertemplate=f"%{{customdata}}<br>{_plain(mark.label)}: %{{x:.4g}} {_plain(x.unit)}"
        "<extra></extra>",
        **about,
    )


def _draw_cells(figure: Figure, x: Axis, y: Axis, mark: Cells, about: dict[str, Any]) -> None:
    scale = mark.scale
    shades = SHADES[::-1] if mark.reverse else SHADES
    log = scale.scale == "log"

    def shown(value: float) -> float:
        return math.log10(value / scale.factor) if log else value / scale.factor

    values = [[shown(it) if math.isfinite(it) else None for it in line] for line in mark.values]
    ticks = {
        "tickvals": [shown(at) for at, _ in scale.ticks],
        "ticktext": [it for _, it in scale.ticks],
    }
    figure.add_heatmap(
        z=values,
        x=list(range(len(mark.values[0]))),
        y=list(range(len(mark.values))),
        zmin=shown(scale.low),
        zmax=shown(scale.high),
        colorscale=[[at / (len(shades) - 1), colour] for at, colour in enumerate(shades)],
        colorbar={
            "title": {"text": _plain(scale.title), "side": "right"},
            "outlinewidth": 0,
            **ticks,
        },
        xgap=2,
        ygap=2,
        customdata=[
            [f"{x.category(at)}, {y.category(row)}" for at in range(len(line))]
            for row, line in enumerate(mark.values)
        ],
        hovertemplate="%{customdata}: %{z:.4g}<extra></extra>",
        **(about | {"showlegend": False}),
    )
    for row, line in enumerate(mark.texts):
        for at, text in enumerate(line):
            if text:
                value = mark.values[row][at]

                ground = shade(mark.share(value)) if math.isfinite(value) else WHITE
                words = Text(at, row, text, ink_on(ground), "center", halo=False)
                _draw_text(figure, x, y, words, about["xaxis"][1:])
    if mark.hatched:
        figure.add_bar(
            orientation="h",
            y=[row for row, _ in mark.hatched],
            base=[at - 0.5 for _, at in mark.hatched],
            x=[1.0] * len(mark.hatched),
            width=1.0,
            name=_plain(mark.hatched_label),
            marker={
                "color": WHITE,
                "line": {"color": WHITE, "width": 2},
                "pattern": {
                    "shape": "/",
                    "fgcolor": SOFT,
                    "bgcolor": WHITE,
                    "solidity": 0.2,
                    "size": 8,
                },
            },
            hoverinfo="name",
            **about,
        )


def _draw_text(figure: Figure, x: Axis, y: Axis, mark: Text, end: str) -> None:
    across, up = mark.x / x.factor, mark.y / y.factor
    figure.add_annotation(
        x=math.log10(across) if x.scale == "log" else across,
        y=math.log10(up) if y.scale == "log" else up,
        xref=f"x{end}",
        yref=f"y{end}",
        text=_plain(mark.text),
        showarrow=False,
        xanchor=mark.align,
        yanchor={"center": "middle"}.get(mark.valign, mark.valign),
        xshift=mark.dx * POINT,
        yshift=mark.dy * POINT,
        textangle=-mark.angle,
        font={"color": mark.colour, "size": SIZE},
        bgcolor="rgba(255, 255, 255, 0.75)" if mark.halo else None,
    )
