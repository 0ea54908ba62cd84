"""A line plot as SVG: both axes logarithmic, one colour a series, measured as dots on a line, predicted dashed."""
import math
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 412, 64, 170, 54, 52
COLOURS = ("#0b6e99", "#b54708", "#3f7d20", "#7a3e9d")


def ticks(low, high):
    """1, 2, 5 a decade; whole decades when there are many, every unit within less than one."""
    steps = range(1, 10) if high / low < 8 else (1, 2, 5) if high / low < 300 else (1,)
    found = [m * 10.0 ** e for e in range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1) for m in steps]
    return [t for t in found if low * 0.999 <= t <= high * 1.001]


def number(value):
    return f"{value / 1000:g}k" if value >= 10000 and value % 1000 == 0 else f"{value:g}"


def line_plot(title, device, x_name, y_name, series):
    """series: [(name, [(x, y), ...], dashed)]; the two of a pair, measured and predicted, follow each other."""
    points = [p for _, line, _ in series for p in line]
    x_low, x_high = min(p[0] for p in points), max(p[0] for p in points)
    y_low, y_high = min(p[1] for p in points) / 1.2, max(p[1] for p in points) * 1.2

    def place(value, low, high, start, end):
        return start + (end - start) * math.log(value / low) / (math.log(high / low) or 1)

    def x_at(x):
        return place(x, x_low, x_high, LEFT + 12, WIDTH - RIGHT - 12)

    def y_at(y):
        return place(y, y_low, y_high, HEIGHT - BOTTOM, TOP)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
           f'<text x="{LEFT}" y="20" font-size="14">{escape(title)}</text>',
           f'<text x="{LEFT}" y="38" fill="#555">{escape(device)}</text>',
           f'<text x="{(LEFT + WIDTH - RIGHT) // 2}" y="{HEIGHT - 12}" text-anchor="middle">{escape(x_name)}</text>',
           f'<text transform="translate(16 {(TOP + HEIGHT - BOTTOM) // 2}) rotate(-90)" '
           f'text-anchor="middle">{escape(y_name)}</text>']
    for y in ticks(y_low, y_high):
        out.append(f'<path d="M{LEFT} {y_at(y):.1f}H{WIDTH - RIGHT}" stroke="#e3e3e3"/>'
                   f'<text x="{LEFT - 6}" y="{y_at(y) + 4:.1f}" text-anchor="end">{number(y)}</text>')
    for x in sorted({p[0] for p in points}):
        out.append(f'<text x="{x_at(x):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{number(x)}</text>')
    for i, (name, line, dashed) in enumerate(series):
        colour, row = COLOURS[i // 2 % len(COLOURS)], TOP + 14 + 20 * i
        style = f'stroke="{colour}" fill="none" stroke-width="1.8"' + (' stroke-dasharray="5 4"' if dashed else "")
        out.append(f'<path d="M{" L".join(f"{x_at(x):.1f} {y_at(y):.1f}" for x, y in line)}" {style}/>')
        if not dashed:
            out += [f'<circle cx="{x_at(x):.1f}" cy="{y_at(y):.1f}" r="3" fill="{colour}"/>' for x, y in line]
        out.append(f'<path d="M{WIDTH - RIGHT + 10} {row - 4}h22" {style}/>'
                   f'<text x="{WIDTH - RIGHT + 38}" y="{row}">{escape(name)}</text>')
    return "\n".join(out) + "\n</svg>\n"
