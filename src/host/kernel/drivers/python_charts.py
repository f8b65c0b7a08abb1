"""Charts of plotly, altair and bokeh: a PNG where their own exporter is there, else the interactive page, and always what
they are made of as data.

Compiled by the Python driver when a value is shown that may be one; `core` is the driver.
"""
import sys

FAILED = {}  # exporters that did not work, and why: each is tried once


def forms(value):
    """Every form of a chart; empty for anything else."""
    for module, name, make in (
        ("plotly.basedatatypes", "BaseFigure", of_plotly),
        ("altair.vegalite", "TopLevelMixin", of_altair),
        ("altair", "TopLevelMixin", of_altair),
        ("bokeh.models", "LayoutDOM", of_bokeh),
    ):
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and isinstance(value, kind):
            return make(value)
    return {}


def with_picture(data, library, kind, title, exporter, export, page):
    """Adds the picture, or else the page and why there is no picture."""
    said = "%s chart (%s)%s" % (library, kind, ": " + title if title else "")
    if exporter not in FAILED:
        try:
            __import__(exporter)
            data["image/png"] = export()
        except ImportError:
            FAILED[exporter] = "the package %s is not installed" % exporter
        except Exception as error:
            FAILED[exporter] = "%s failed with %s: %s" % (exporter, type(error).__name__, str(error).strip()[:200])
    if "image/png" not in data:
        try:
            data["text/html"] = page()
            said += ". Interactive page, no picture: %s" % FAILED[exporter]
        except Exception as error:
            said += ". No picture: %s. No page: %s: %s" % (FAILED[exporter], type(error).__name__, str(error)[:200])
    return {"text/plain": said, **data}


# ---------------------------------------------------------------- plotly


def of_plotly(figure):
    traces = [trace.type for trace in figure.data]
    kinds = ", ".join(kind if traces.count(kind) == 1 else "%d %s" % (traces.count(kind), kind)
                      for kind in dict.fromkeys(traces))
    title = figure.layout.title.text
    data = {"application/vnd.plotly.v1+json": core.Json(figure.to_json())}
    return with_picture(data, "plotly", kinds or "empty", title, "kaleido", lambda: figure.to_image(format="png"),
                        lambda: figure.to_html(full_html=True, include_plotlyjs=True))


def adopt_plotly(module):
    """`fig.show()` shows, whatever plotly takes this place for."""

    class Renderer(module.ExternalRenderer):
        def render(self, fig_dict):
            from plotly.graph_objects import Figure

            core.emit(Figure(fig_dict, skip_invalid=True))

    module.renderers["pathbox"] = Renderer()
    module.renderers.default = "pathbox"


# ---------------------------------------------------------------- altair


def of_altair(chart):
    spec = chart.to_dict()
    kind = spec.get("mark", "several views")
    kind = kind.get("type", "") if isinstance(kind, dict) else kind
    title = spec.get("title", "")
    title = title.get("text", "") if isinstance(title, dict) else title
    version = str(spec.get("$schema", "v5")).rpartition("/v")[2].split(".")[0] or "5"

    def export():
        import io

        out = io.BytesIO()
        chart.save(out, format="png")
        return out.getvalue()

    data = {"application/vnd.vegalite.v%s+json" % version: spec}
    return with_picture(data, "altair", kind, title if isinstance(title, str) else "", "vl_convert", export, chart.to_html)


# ---------------------------------------------------------------- bokeh


def of_bokeh(model):
    title = getattr(getattr(model, "title", None), "text", "") or ""

    def export():
        import io
        import shutil

        if not any(map(shutil.which, ("chromedriver", "geckodriver"))):
            raise RuntimeError("it has no browser to draw with")
        from bokeh.io.export import get_screenshot_as_png

        out = io.BytesIO()
        get_screenshot_as_png(model).save(out, "PNG")
        return out.getvalue()

    def page():
        from bokeh.embed import file_html
        from bokeh.resources import INLINE

        return file_html(model, INLINE, title or "bokeh")

    kinds = {type(renderer.glyph).__name__ for renderer in getattr(model, "renderers", ()) if hasattr(renderer, "glyph")}
    return with_picture({}, "bokeh", ", ".join(sorted(kinds)) or type(model).__name__, title, "selenium", export, page)


def adopt_bokeh(module):
    """`show(plot)` shows instead of opening a browser."""

    def show(obj, *positional, **named):
        core.emit(obj)

    module.show = show
