"""The heat map as one HTML page without scripts or external files, for light and dark screens.

Two pictures of the same grid: heat, which fades within seconds of the last use and is shown as a
share of the hottest now, and tokens since the start. Radio buttons switch between them; a cell's
own share sets its colour in CSS.
"""

from html import escape

from miractl.telemetry.experts import ExpertTable
from miractl.telemetry.snapshot import ExpertRow

_FADED = 0.005  # a hottest score that prints as 0.00 is no scale, so tokens are shown first

_STYLE = """
:root { color-scheme: light dark; --page: #ffffff; --ink: #1c2024; --soft: #687076;
  --line: #e2e5e8; --cold: #eef1f4; --hot: #b93815; --mark: #1c2024; }
@media (prefers-color-scheme: dark) { :root { --page: #15181b; --ink: #e8eaec; --soft: #9aa3aa;
  --line: #2c3238; --cold: #22272c; --hot: #ff9d5c; --mark: #ffffff; } }
body { background: var(--page); color: var(--ink); font: 14px/1.5 system-ui, sans-serif;
  margin: 2rem auto; padding: 0 1.5rem; max-width: 110rem; }
h1 { font-size: 1.3rem; margin: 0; } p { margin: .3rem 0 1rem; color: var(--soft); }
label { margin-right: 1.2rem; cursor: pointer; }
.grid { overflow-x: auto; padding: 2.4rem 0 1rem; }
table { border-collapse: separate; border-spacing: 1px; font-size: 11px; }
th { font-weight: 400; color: var(--soft); text-align: right; padding: 0 .5rem 0 0; height: 16px;
  font-variant-numeric: tabular-nums; }
thead th { text-align: center; padding: 0; }
td, .key i { --share: var(--heat); position: relative; min-width: 14px; width: 22px; height: 16px;
  border-radius: 2px;
  background: color-mix(in oklab, var(--hot) calc(var(--share) * 100%), var(--cold)); }
#tokens:checked ~ .grid td { --share: var(--part); }
#heat:checked ~ .key .of-tokens, #tokens:checked ~ .key .of-heat { display: none; }
td.resident { box-shadow: inset 0 -2px 0 var(--mark); }
td.never, .key i.never {
  background: repeating-linear-gradient(135deg, var(--line) 0 2px, var(--page) 2px 5px); }
td:hover { outline: 2px solid var(--mark); }
td:hover::after { content: attr(data-tip); position: absolute; z-index: 1; left: 0;
  bottom: calc(100% + 5px); background: var(--ink); color: var(--page); padding: .25rem .5rem;
  border-radius: 4px; white-space: pre; pointer-events: none; }
td.right:hover::after { left: auto; right: 0; }
.key { color: var(--soft); display: flex; gap: .4rem 1.6rem; flex-wrap: wrap; }
.key i { display: inline-block; vertical-align: -3px; margin-right: .4rem; }
.key i.ramp { width: 110px;
  background: linear-gradient(to right in oklab, var(--cold), var(--hot)); }
.key i.resident { --share: .5; box-shadow: inset 0 -2px 0 var(--mark); }
"""


def render_page(table: ExpertTable, when: str) -> str:
    """The whole page. `when` is the moment in words; the model's name is escaped."""
    by_layer: dict[int, dict[int, ExpertRow]] = {}
    for row in table.rows:
        by_layer.setdefault(row.layer, {})[row.expert] = row
    experts = max((row.expert for row in table.rows), default=-1) + 1
    hottest = max((row.heat for row in table.rows), default=0.0)
    never = sum(row.activations == 0 for row in table.rows)
    title = f"Expert heat of {escape(table.model)}"
    checked = ("", " checked") if hottest < _FADED else (" checked", "")
    header = "".join(f"<th>{e if e % 4 == 0 else ''}</th>" for e in range(experts))
    body = "\n".join(
        _row(layer, cells, experts, hottest) for layer, cells in sorted(by_layer.items())
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>
<h1>{title}</h1>
<p>{escape(when)} · {len(by_layer)} layers × {experts} experts · \
{never} of {len(table.rows)} never used · hottest now {hottest:.2f}</p>
<input type="radio" name="view" id="heat"{checked[0]}><label for="heat">Heat now</label>
<input type="radio" name="view" id="tokens"{checked[1]}><label for="tokens">\
Tokens since the start</label>
<div class="grid"><table><thead><tr><th>layer</th>{header}</tr></thead><tbody>
{body}
</tbody></table></div>
<div class="key"><span><i class="ramp"></i>\
<span class="of-heat">heat 0 to {hottest:.2f}, the hottest now (1 is the most there can be)</span>\
<span class="of-tokens">tokens from none to the most in its layer</span></span>\
<span><i class="resident"></i>resident now</span>\
<span><i class="never"></i>never used</span></div>
</body></html>
"""


def _row(layer: int, cells: dict[int, ExpertRow], experts: int, hottest: float) -> str:
    most = max((row.activations for row in cells.values()), default=0)
    filled = "".join(_cell(cells.get(expert), most, experts, hottest) for expert in range(experts))
    return f"<tr><th>{layer}</th>{filled}</tr>"


def _cell(row: ExpertRow | None, most: int, experts: int, hottest: float) -> str:
    """A cell; its tooltip opens to the left in the right half of the grid."""
    if row is None:
        return "<td></td>"
    classes = [
        *(["resident"] if row.resident else []),
        *(["never"] if row.activations == 0 else []),
        *(["right"] if row.expert >= experts / 2 else []),
    ]
    hits, asked = row.hits or 0, (row.hits or 0) + (row.misses or 0)
    rate = f", {hits / asked:.0%} of {asked} lookups hit" if asked else ""
    where = f"layer {row.layer}, expert {row.expert}"
    tip = f"{where}: heat {row.heat:.2f}, {row.activations} tokens{rate}"
    heat = row.heat / hottest if hottest else 0.0
    part = row.activations / most if most else 0.0
    return (
        f'<td class="{" ".join(classes)}" style="--heat:{heat:.3f};--part:{part:.3f}" '
        f'data-tip="{tip}"></td>'
    )
