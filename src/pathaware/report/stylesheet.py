"""How our HTML pages look: on a screen by day and by night, on a phone, and on paper."""

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #222; --quiet: #666; --line: #e2e2e2; --rule: #444;
        --accent: #b84e00; --code: #f6f6f6; --edge: #e8e8e8; }
@media screen and (prefers-color-scheme: dark) {
  :root { --paper: #16181b; --ink: #e4e4e4; --quiet: #a0a4aa; --line: #33373c; --rule: #8a8f96;
          --accent: #ff9d5c; --code: #1f2226; --edge: #fff; }
}
* { box-sizing: border-box; }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       max-width: 66rem; margin: 2.5rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.8rem; line-height: 1.25; margin: 0 0 .3rem; overflow-wrap: break-word; }
h2 { font-size: 1.3rem; margin: 2.8rem 0 .6rem; padding-top: .9rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.02rem; margin: 1.8rem 0 .4rem; }
a { color: var(--accent); }
p.lead { color: var(--quiet); margin-top: 0; }
p.note, figcaption { color: var(--quiet); font-size: .88rem; margin: .4rem 0; max-width: 46rem; }
nav ul { padding-left: 1.2rem; }
div.wide { overflow-x: auto; }
table { border-collapse: collapse; border-top: 2px solid var(--rule); border-bottom: 2px solid var(--rule);
        font-variant-numeric: tabular-nums; font-size: .94rem; margin: .6rem 0; }
th, td { padding: .32rem 1.1rem; text-align: left; white-space: nowrap; vertical-align: top; }
th:first-child, td:first-child { padding-left: .15rem; position: sticky; left: 0; background: var(--paper); }
th:last-child, td:last-child { padding-right: .15rem; }
th { font-weight: 600; }
th.number, td.number { text-align: right; }
tbody { border-top: 1px solid var(--rule); }
tbody + tbody { border-top-color: var(--line); }
td.remark { color: var(--quiet); font-size: .85rem; font-style: italic; white-space: normal;
            min-width: 9rem; }
td.nothing { color: var(--quiet); }
tr.best td { color: var(--accent); font-weight: 600; }
div.figures { display: flex; flex-wrap: wrap; gap: 1.4rem; margin: 1.4rem 0; }
figure { margin: 0; flex: 1 1 26rem; min-width: 0; max-width: 40rem; }
figure.broad { flex-basis: 100%; max-width: none; }
figure img { display: block; width: 100%; height: auto; padding: .7rem; border-radius: 8px;
             background: #fff; border: 1px solid var(--edge); }
details { margin: .5rem 0; }
summary { cursor: pointer; color: var(--quiet); }
pre { background: var(--code); padding: .9rem 1.1rem; overflow-x: auto; border-radius: 6px;
      font-size: .85rem; }
@media (max-width: 44rem) {
  body { margin: 1.2rem auto; padding: 0 .9rem; }
  th, td { padding: .3rem .6rem; }
  figure { flex-basis: 100%; }
  figure img { padding: .3rem; }
}
@media print {
  body { max-width: none; margin: 0; font-size: 10pt; }
  nav { display: none; }
  figure, tr, pre { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  div.wide { overflow: visible; }
  th, td { white-space: normal; padding: .2rem .5rem; }
}
"""
