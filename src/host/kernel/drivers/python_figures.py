"""matplotlib's figures: as PNG when they are shown or the cell ends, and as data for E2B's `chart` field.

Compiled by the Python driver when matplotlib is imported; `core` is the driver. Figures come through a
backend of our own, `module://pathbox_figures`: the Agg renderer whose `show()` sends. The environment stays
as it is, so a plot script that a cell starts as a process of its own is not led to a backend it cannot see.
"""
import io
import re
import sys

BACKEND = "module://pathbox_figures"


def prepare(matplotlib):
    """Called once, right after `import matplotlib`."""
    import os

    if not os.environ.get("MPLBACKEND"):
        matplotlib.rcParams["backend"] = BACKEND
        matplotlib.interactive(True)


def define_backend(module):
    from matplotlib.backend_bases import FigureManagerBase
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    class FigureCanvas(FigureCanvasAgg):
        pass

    class FigureManager(FigureManagerBase):
        def show(self):
            core.emit(self.canvas.figure)

        @classmethod
        def pyplot_show(cls, *_, **__):
            show_all()

    FigureCanvas.manager_class = FigureManager
    module.FigureCanvas, module.FigureManager = FigureCanvas, FigureManager
    module.show = lambda *_, **__: show_all()

    def new_figure_manager(number, *positional, FigureClass=None, **named):
        from matplotlib.figure import Figure

        return new_figure_manager_given_figure(number, (FigureClass or Figure)(*positional, **named))

    def new_figure_manager_given_figure(number, figure):
        return FigureManager(FigureCanvas(figure), number)

    module.new_figure_manager = new_figure_manager
    module.new_figure_manager_given_figure = new_figure_manager_given_figure
    module.draw_if_interactive = lambda: None


def show_all():
    """Sends every open figure and closes it."""
    helpers = sys.modules.get("matplotlib._pylab_helpers")
    if helpers is None:
        return
    try:
        for manager in helpers.Gcf.get_all_fig_managers():
            figure = manager.canvas.figure
            if figure not in sent or picture(figure) != sent[figure]:
                core.emit(figure)
    finally:
        sys.modules["matplotlib.pyplot"].close("all")


sent = {}  # figures of this cell that were shown, and what they looked like


def finish():
    """A cell is over: what it has drawn and not shown is shown now, each picture once."""
    try:
        show_all()
    finally:
        sent.clear()
        if missing:
            core.note("no font here has %s: the pictures show boxes. Use other characters, or have a font installed on the machine "
                      "of the sandboxes (Debian: fonts-noto-cjk, fonts-noto-core)" % ", ".join(sorted(missing)))
            missing.clear()


def forms(figure):
    """PNG and chart data of a figure that has something drawn on it."""
    if not (figure.axes or figure.lines or figure.texts or figure.images or figure.patches):
        return {}
    out = {"image/png": picture(figure)}
    sent[figure] = out["image/png"]
    try:
        out["e2b/chart"] = chart_of_figure(figure)
    except Exception:
        pass  # an extra that not every figure has
    return out


def picture(figure):
    canvas, data = figure.canvas, io.BytesIO()
    try:
        figure.savefig(data, format="png", dpi=figure.dpi, bbox_inches="tight",
                       facecolor=figure.get_facecolor(), edgecolor=figure.get_edgecolor())
        return data.getvalue()
    finally:
        if figure.canvas is not canvas:
            figure.set_canvas(canvas)


# ---------------------------------------------------------------- fonts

missing = set()  # characters of this cell that no font has
FAMILIES = ("Noto Sans CJK", "Noto Serif CJK", "Source Han", "WenQuanYi", "Droid Sans Fallback", "IPAGothic", "IPAexGothic",
            "Nanum", "AR PL", "Noto Sans Devanagari", "Noto Sans Thai", "Noto Sans Arabic", "Noto Sans Hebrew", "Unifont")


def prepare_fonts(module):
    """Lets text fall back on the fonts of other scripts that this machine has, and tells of a missing character once."""
    import matplotlib
    import warnings

    here = {font.name for font in module.fontManager.ttflist}
    found = [name for family in FAMILIES for name in sorted(here) if name.startswith(family)]
    matplotlib.rcParams["font.family"] = list(matplotlib.rcParams["font.family"]) + found[:8]
    warn = warnings.showwarning

    def showwarning(message, *others, **named):
        glyph = re.match(r"Glyph (\d+) .*missing from", str(message))
        if glyph and core.State.id:
            missing.add(chr(int(glyph.group(1))))
        else:
            warn(message, *others, **named)

    warnings.showwarning = showwarning


# ---------------------------------------------------------------- chart data


def chart_of_figure(figure):
    charts = [chart_of_axes(axes) for axes in figure.get_axes()]
    if not charts:
        return None
    if len(charts) == 1:
        return charts[0]
    title = figure._suptitle.get_text() if getattr(figure, "_suptitle", None) is not None else None
    return {"type": "superchart", "title": title or None, "elements": charts}


def chart_of_axes(axes):
    kind = kind_of(axes)
    chart = {"type": kind, "title": axes.get_title() or None}
    if kind == "unknown":
        chart["elements"] = []
    elif kind == "pie":
        chart["elements"] = pie(axes)
    else:
        chart["elements"] = {"line": lines, "scatter": scatter, "bar": bars, "box_and_whisker": boxes}[kind](axes)
        x_label, y_label = axes.get_xlabel(), axes.get_ylabel()
        if kind == "bar" and not all(upright(group) for group in bar_groups(axes)):
            x_label, y_label = y_label, x_label  # as at E2B, where x is what the bars are named by
        chart.update(x_label=x_label or None, y_label=y_label or None, x_unit=unit(x_label), y_unit=unit(y_label))
        if kind in ("line", "scatter"):
            for name, axis, scale in (("x", axes.xaxis, axes.get_xscale()), ("y", axes.yaxis, axes.get_yscale())):
                converter = type(axis_converter(axis)).__name__
                if "Date" in converter:
                    scale = "datetime"
                elif converter == "StrCategoryConverter":
                    scale = "categorical"
                ticks = [float(t) for t in axis.get_ticklocs()]
                if scale == "datetime":
                    ticks = [when(t) for t in ticks]
                chart[name + "_ticks"] = ticks
                chart[name + "_tick_labels"] = [label.get_text() for label in axis.get_ticklabels()]
                chart[name + "_scale"] = scale
    return chart


def axis_converter(axis):
    get = getattr(axis, "get_converter", None)
    return get() if get else axis.converter


def kind_of(axes):
    from matplotlib.collections import PathCollection
    from matplotlib.lines import Line2D
    from matplotlib.patches import PathPatch, Rectangle, Wedge
    from matplotlib.text import Text

    drawn = [a for a in axes.get_children() if a in drawn_by_user(axes) and not isinstance(a, Text)]

    def only(*kinds):
        return drawn and all(isinstance(a, kinds) for a in drawn)

    if only(Line2D):
        return "box_and_whisker" if looks_boxed(drawn) else "line"
    if only(PathPatch, Line2D):
        return "box_and_whisker"
    if only(PathCollection):
        return "scatter"
    if only(Wedge):
        return "pie"
    if only(Rectangle):
        return "bar"
    return "unknown"


def drawn_by_user(axes):
    return list(axes.lines) + list(axes.patches) + list(axes.collections) + list(axes.images) + list(axes.texts)


def looks_boxed(drawn):
    """`boxplot` draws, for each box, its outline (5 points), whiskers and caps (2 points), a median."""
    return any(len(a.get_xdata()) == 5 for a in drawn) and len(drawn) >= 6 and (
        all(a.get_label().startswith("_") for a in drawn))


def unit(label):
    found = re.search(r"\s\((.*?)\)|\[(.*?)\]", label or "")
    return (found.group(1) or found.group(2)) if found else None


def number(value):
    value = getattr(value, "item", lambda: value)()
    return value if isinstance(value, str) else float(value) if isinstance(value, (int, float)) else str(value)


def when(days):
    from matplotlib.dates import num2date

    return num2date(days).isoformat()


def coordinate(value, axis):
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if type(value).__name__ == "datetime64":
        return str(value)
    return number(value)


def named(label, prefix, what, at):
    return "%s %d" % (what, at) if label.startswith(prefix) else label


def lines(axes):
    return [
        {
            "label": named(line.get_label(), "_child", "Line", at),
            "points": [
                [coordinate(x, axes.xaxis), coordinate(y, axes.yaxis)]
                for x, y in zip(line.get_xdata(orig=True), line.get_ydata(orig=True))
            ],
        }
        for at, line in enumerate(axes.get_lines())
    ]


def scatter(axes):
    return [
        {
            "label": named(points.get_label(), "_child", "Group", at),
            "points": [[number(x), number(y)] for x, y in points.get_offsets()],
        }
        for at, points in enumerate(axes.collections)
    ]


def bar_groups(axes):
    from matplotlib.container import BarContainer

    return [group for group in axes.containers if isinstance(group, BarContainer)]


def upright(group):
    return getattr(group, "orientation", "vertical") != "horizontal"


def bars(axes):
    """Each bar is named by the tick that it belongs to: the nearest, up to half of the way to the next."""
    out = []
    for at, group in enumerate(bar_groups(axes)):
        axis = axes.xaxis if upright(group) else axes.yaxis
        ticks = [(float(tick), label.get_text()) for tick, label in zip(axis.get_ticklocs(), axis.get_ticklabels())]
        gaps = [b - a for (a, _), (b, _) in zip(ticks, ticks[1:]) if b > a]
        reach = min(gaps) / 2 if gaps else float("inf")
        named_by_user = axis_converter(axis) is not None or type(axis.get_major_locator()).__name__ == "FixedLocator"
        for bar in group:
            middle = bar.get_x() + bar.get_width() / 2 if upright(group) else bar.get_y() + bar.get_height() / 2
            tick, label = min(ticks, key=lambda tick: abs(tick[0] - middle), default=(middle, ""))
            near = abs(tick - middle) <= (reach if named_by_user else 1e-9)
            out.append({
                "label": label if near and label else str(number(middle)),
                "group": named(group.get_label(), "_container", "Group", at),
                "value": float(bar.get_height() if upright(group) else bar.get_width()),
            })
    return out


def pie(axes):
    return [
        {"label": wedge.get_label(), "angle": float(abs(wedge.theta2 - wedge.theta1)), "radius": float(wedge.r)}
        for wedge in axes.patches
    ]


def boxes(axes):
    """Boxes are found by their outline; what touches its middle line belongs to it."""
    labels = [label.get_text() for label in axes.xaxis.get_ticklabels()]
    outlines = [line for line in axes.get_lines() if len(line.get_xdata()) == 5]
    outlines = [(list(map(float, o.get_xdata())), list(map(float, o.get_ydata()))) for o in outlines]
    for patch in axes.patches:
        path = patch.get_path().vertices
        outlines.append((list(map(float, path[:, 0])), list(map(float, path[:, 1]))))
    others = [(l, list(map(float, l.get_xdata())), list(map(float, l.get_ydata())))
              for l in axes.get_lines() if len(l.get_xdata()) != 5]
    out = []
    for at, (xs, ys) in enumerate(outlines):
        left, right, low, high = min(xs), max(xs), min(ys), max(ys)
        middle = (left + right) / 2
        here = [(l, x, y) for l, x, y in others if x and left <= sum(x) / len(x) <= right]
        whiskers = [y for _, x, y in here if len(x) == 2 and x[0] == x[1] == middle]
        widest = max([abs(x[1] - x[0]) for _, x, _ in here if len(x) == 2] or [0])
        medians = [y[0] for _, x, y in here if len(x) == 2 and 0 < abs(x[1] - x[0]) == widest]
        fliers = [v for l, x, y in here if l.get_linestyle() in ("None", "", " ") for v in y]
        reach = [v for y in whiskers for v in y] + [low, high]
        out.append({
            "label": labels[at] if at < len(labels) else str(at + 1),
            "min": min(reach),
            "first_quartile": low,
            "median": medians[0] if medians else None,
            "third_quartile": high,
            "max": max(reach),
            "outliers": fliers,
        })
    return out
