"""An image of predictions: the support set, then every image with its predicted label beneath."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from pathaware.data.contact_sheet import CELL, FAINT, GAP, INK, MARGIN, PAPER, RULE, cell, fitted, font
from pathaware.inference.predictions import NONE, Predictions, Reason
from pathaware.inference.trained_model import SupportSet

if TYPE_CHECKING:
    from PIL import Image, ImageDraw

MAX_IMAGES = 240
MAX_EXAMPLES = 5
_COLUMNS = 12
_STEP = CELL + 2 * GAP
_WIDTH = 2 * MARGIN + _COLUMNS * _STEP - 2 * GAP
_SMALL, _NAME, _BETWEEN = 56, 20, 18
_CAPTION, _REASON = 60, 26
_SURE, _LIKELY, _DOUBTFUL, _WRONG = (38, 128, 108), (206, 150, 44), (190, 84, 62), (190, 40, 40)


def prediction_sheet(
    title: str,
    support: SupportSet,
    pixels: Tensor,
    predictions: Predictions,
    truths: Sequence[str | None] | None = None,
) -> Image.Image:
    """Draw the support set by class, then `pixels [N, C, size, size]` with their predicted labels.

    A bar shows the probability of a label; with `truths`, a frame marks wrong labels. With reasons, small
    support images below a label show which count for it (green) and against it (red).
    """
    from PIL import Image, ImageDraw

    groups, below = _layout_groups(support)
    shown = min(len(pixels), MAX_IMAGES)
    top = below + 40
    line = CELL + _CAPTION + (0 if predictions.why is None else _REASON + 8)
    height = top + -(-shown // _COLUMNS) * line + (24 if shown < len(pixels) else 0)
    sheet = Image.new("RGB", (_WIDTH, height + MARGIN // 2), PAPER)
    pen = ImageDraw.Draw(sheet)
    letters = font(17, bold=True, text=title)
    pen.text((MARGIN, MARGIN - 4), fitted(title, _WIDTH - 2 * MARGIN, letters), INK, letters)
    _draw_groups(sheet, pen, support, groups)
    pen.line([(MARGIN, below + 2), (_WIDTH - MARGIN, below + 2)], fill=RULE, width=1)
    pen.text((MARGIN, below + 14), "predictions", FAINT, font(13))
    for i in range(shown):
        position = (MARGIN + i % _COLUMNS * _STEP, top + i // _COLUMNS * line)
        sheet.paste(cell(pixels[i].numpy()), position)
        ((_, probability),) = predictions.ranked(i, 1)
        label = predictions.label(i)
        wrong = truths is not None and truths[i] not in (None, label)
        _draw_label(pen, position, label, probability, wrong)
        if predictions.why is not None:
            _draw_reason(sheet, pen, position, support, predictions.why[i])
    if shown < len(pixels):
        pen.text((MARGIN, height - 16), f"and {len(pixels) - shown:,} more", FAINT, font(13))
    return sheet


def _draw_reason(
    sheet: Image.Image,
    pen: ImageDraw.ImageDraw,
    position: tuple[int, int],
    support: SupportSet,
    reason: Reason,
) -> None:
    x, y = position[0], position[1] + CELL + _CAPTION - 14
    shown = [(i, _SURE) for i, _ in reason.positive[:2]] + [(i, _WRONG) for i, _ in reason.negative[:1]]
    for index, colour in shown:
        sheet.paste(cell(support.pixels[index].numpy(), _REASON), (x, y))
        pen.rectangle((x - 1, y - 1, x + _REASON, y + _REASON), outline=colour, width=2)
        x += _REASON + 5


def _layout_groups(support: SupportSet) -> tuple[list[tuple[int, int, int]], int]:
    """Lay out the classes like words in lines of text; return x, y and width of each, and the bottom."""
    x, y, groups = MARGIN, MARGIN + 58, []
    for count in support.labels.bincount(minlength=len(support.classes)).tolist():
        shown = min(count, MAX_EXAMPLES)
        width = max(shown * (_SMALL + 4) - 4, CELL)
        if x > MARGIN and x + width > _WIDTH - MARGIN:
            x, y = MARGIN, y + _NAME + _SMALL + _BETWEEN
        groups.append((x, y, width))
        x += width + _BETWEEN
    return groups, y + _NAME + _SMALL + _BETWEEN


def _draw_groups(
    sheet: Image.Image, pen: ImageDraw.ImageDraw, support: SupportSet, groups: Sequence[tuple[int, int, int]]
) -> None:
    pen.text((MARGIN, MARGIN + 28), "learned from", FAINT, font(13))
    for label, (name, (x, y, width)) in enumerate(zip(support.classes, groups, strict=True)):
        images = support.pixels[support.labels == label]
        more = f" +{len(images) - MAX_EXAMPLES}" if len(images) > MAX_EXAMPLES else ""
        letters = font(12, text=name)
        room = width - round(letters.getlength(more))
        pen.text((x, y), fitted(name, room, letters) + more, INK, letters)
        for i, image in enumerate(images[:MAX_EXAMPLES]):
            sheet.paste(cell(image.numpy(), _SMALL), (x + i * (_SMALL + 4), y + _NAME))


def _draw_label(
    pen: ImageDraw.ImageDraw, position: tuple[int, int], label: str, probability: float, wrong: bool
) -> None:
    x, y = position
    if wrong:
        pen.rectangle((x - 3, y - 3, x + CELL + 2, y + CELL + 2), outline=_WRONG, width=3)
    bar = y + CELL + 5
    if label == NONE:  # a probability is one among the classes
        pen.text((x, bar + 7), fitted(label, CELL + GAP, font(12)), FAINT, font(12))
        return
    colour = _SURE if probability >= 0.9 else _LIKELY if probability >= 0.6 else _DOUBTFUL
    pen.rectangle((x, bar, x + CELL - 1, bar + 3), fill=RULE)
    pen.rectangle((x, bar, x + max(1, round(CELL * probability)) - 1, bar + 3), fill=colour)
    letters = font(12, text=label)
    pen.text((x, bar + 7), fitted(label, CELL + GAP, letters), _WRONG if wrong else INK, letters)
    pen.text((x, bar + 23), f"{100 * probability:.0f} %", FAINT, font(11))
