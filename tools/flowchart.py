"""Draw a Mermaid flowchart as SVG, so that a page needs no script for it.

Only what `tools.house.diagram` writes is understood: `name["title<br/><small>text</small>"]` and `a --> b`.
"""

from __future__ import annotations

import html
import re
from functools import cache
from itertools import pairwise

WIDTH, HEIGHT, ACROSS, DOWN, MARGIN = 232, 54, 26, 44, 8
"""The size of a box, the gaps between boxes and between layers, and the margin, in pixels."""

_NODE = re.compile(r'(\w+)\["(.*?)<br/><small>(.*?)</small>"\]')
_EDGE = re.compile(r"(\w+) --> (\w+)")


def svg(flowchart: str) -> str:
    """Return the SVG of a flowchart; a line that is not understood is a `ValueError`."""
    nodes: dict[str, tuple[str, str]] = {}
    edges: list[tuple[str, str]] = []
    for line in map(str.strip, flowchart.strip().splitlines()[1:]):
        if node := _NODE.fullmatch(line):
            nodes[node[1]] = (node[2], node[3])
        elif edge := _EDGE.fullmatch(line):
            edges.append((edge[1], edge[2]))
        else:
            raise ValueError(f"the flowchart has a line that cannot be drawn: {line!r}")
    layers, chains = _layers(list(nodes), edges)
    places = _places(layers)
    width = max(x for x, _ in places.values()) + WIDTH / 2 + MARGIN
    height = max(y for _, y in places.values()) + HEIGHT / 2 + MARGIN
    drawn = [_arrow([places[point] for point in chain]) for chain in chains]
    drawn += [_box(*places[name], *label) for name, label in nodes.items()]
    title = "Map of the package: an arrow points from a sub-package to one that it imports"
    box = f'viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{title}"'
    return f'<div class="flowchart-box"><svg class="flowchart" {box}>{"".join(drawn)}</svg></div>'


def _layers(names: list[str], edges: list[tuple[str, str]]) -> tuple[list[list[str]], list[list[str]]]:
    """Layers from top to bottom, and for every edge the points it passes, one per layer."""
    after: dict[str, list[str]] = {name: [] for name in names}
    for here, there in edges:
        after[here].append(there)

    @cache
    def height(name: str) -> int:
        return 1 + max((height(other) for other in after[name]), default=-1)

    top = max(map(height, names))
    layers: list[list[str]] = [[n for n in names if height(n) == level] for level in range(top, -1, -1)]
    chains = []
    for here, there in edges:
        between = [f"{here}>{there}@{level}" for level in range(height(here) - 1, height(there), -1)]
        for level, point in zip(range(height(here) - 1, height(there), -1), between, strict=True):
            layers[top - level].append(point)
        chains.append([here, *between, there])
    neighbours: dict[str, list[str]] = {}
    for chain in chains:
        for upper, lower in pairwise(chain):
            neighbours.setdefault(lower, []).append(upper)
    for above, layer in pairwise(layers):  # a point stands below the mean of those it comes from
        position = {name: (i + 0.5) / len(above) for i, name in enumerate(above)}
        layer.sort(key=lambda n: sum(position[u] for u in neighbours[n]) / len(neighbours[n]))
    return layers, chains


def _places(layers: list[list[str]]) -> dict[str, tuple[float, float]]:
    """The centre of every point."""
    widest = max(map(len, layers))
    middle = MARGIN + (widest * WIDTH + (widest - 1) * ACROSS) / 2
    return {
        name: (
            middle + (i - (len(layer) - 1) / 2) * (WIDTH + ACROSS),
            MARGIN + HEIGHT / 2 + row * (HEIGHT + DOWN),
        )
        for row, layer in enumerate(layers)
        for i, name in enumerate(layer)
    }


def _arrow(points: list[tuple[float, float]]) -> str:
    path, (x, y) = [f"M{points[0][0]:g} {points[0][1] + HEIGHT / 2:g}"], points[0]
    y += HEIGHT / 2
    for i, (to_x, centre) in enumerate(points[1:], start=1):
        last = i == len(points) - 1
        to_y = centre - HEIGHT / 2 - (6 if last else 0)
        bend = (to_y - y) / 2
        path.append(f"C{x:g} {y + bend:g} {to_x:g} {to_y - bend:g} {to_x:g} {to_y:g}")
        x, y = to_x, to_y
        if not last:
            y = centre + HEIGHT / 2
            path.append(f"L{x:g} {y:g}")
    tip = f"M{x - 4:g} {y:g}h8l-4 6z"
    return f'<path d="{" ".join(path)}"/><path class="tip" d="{tip}"/>'


def _box(x: float, y: float, title: str, text: str) -> str:
    left, top = x - WIDTH / 2, y - HEIGHT / 2
    return (
        f'<rect x="{left:g}" y="{top:g}" width="{WIDTH}" height="{HEIGHT}" rx="5"/>'
        f'<text x="{x:g}" y="{y - 3:g}">{html.escape(title)}</text>'
        f'<text class="what" x="{x:g}" y="{y + 16:g}">{html.escape(text)}</text>'
    )
