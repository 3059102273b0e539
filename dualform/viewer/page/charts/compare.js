// Before and after, in pairs: probabilities with all slots and without the muted ones.
//
//   compare({rows: [{label: "3", before: 0.97, after: 0.12, link: {class: 3}}]});
//   compare({rows, unit: "probability of each class"});
import {cut, frame, line, scale, text, textWidth} from "viewer/charts/axes";
import {nothing, paints} from "viewer/charts/labels";
import {svg} from "viewer/core/dom";
import {percent} from "viewer/core/format";
import {link} from "viewer/core/highlight";

const ROW = 28;

export function compare({rows, unit = "probability", caption = "", width, height = 120}) {
  const draw = (drawnWidth) => (rows.length ? pairs(rows, unit, drawnWidth) : nothing(drawnWidth, height));
  const describe = rows.map((row) => `${row.label}: ${change(row)}`).join("; ");
  return frame({name: caption || `${unit}, before and after muting`, describe, width, height, draw, kind: "compare"});
}

/** Whole per cent: a change that this does not show is not worth a word. */
function rounded(p) {
  if (!Number.isFinite(p)) return percent(p);
  if (p < 0.005) return "<1%";
  return p >= 0.995 ? ">99%" : `${Math.round(p * 100)}%`;
}

const moved = ({before, after}) => rounded(before) !== rounded(after);
const change = (row) => (moved(row) ? `${rounded(row.before)} → ${rounded(row.after)}` : rounded(row.after));

function pairs(rows, unit, width) {
  const names = Math.min(width * 0.34, Math.max(...rows.map((row) => textWidth(row.label, 12, true))) + 2);
  const words = Math.max(...rows.map((row) => textWidth(change(row), 12, true))) + 10,
    top = 28;
  const x = scale([0, 1], [names + 10, width - words]);
  const all = svg(
    "g",
    {},
    rows.map((row, i) => pair(row, top + i * ROW, {x, names, width, some: rows.some((other) => other.emphasis)})),
  );
  return {
    height: top + rows.length * ROW + 4,
    nodes: [
      text(0, 12, cut(unit, width - 150), {class: "axis-label"}),
      legend(width),
      [0, 0.5, 1].map((mark) => line(x(mark), top, x(mark), top + rows.length * ROW, {class: mark ? "grid" : "zero"})),
      all,
    ],
  };
}

function legend(width) {
  const x = width - textWidth("before") - textWidth("after") - 44;
  const second = x + 16 + textWidth("before") + 12;
  return svg(
    "g",
    {class: "legend"},
    svg("rect", {class: "was", x, y: 3, width: 10, height: 10, rx: 2}),
    text(x + 16, 12, "before", {class: "tick"}),
    svg("rect", {class: "is", x: second, y: 3, width: 10, height: 10, rx: 2}),
    text(second + 16, 12, "after", {class: "tick"}),
  );
}

function pair(row, y, {x, names, width, some}) {
  const long = (value) => Math.max(0.75, x(Math.min(1, Math.max(0, value ?? 0))) - x(0));
  const bar = (value, name, down, tall) =>
    svg("rect", {class: name, x: x(0), y: y + down, width: long(value), height: tall, rx: 1.5});
  const paint = some && !row.emphasis ? {"--paint": "var(--strong-line)"} : {}; // not the grey of "before"
  const group = svg(
    "g",
    {class: `pair ${moved(row) ? "moved" : ""} ${row.emphasis ?? ""}`, style: {...paints(row, some), ...paint}},
    svg("rect", {class: "hit", x: 0, y, width, height: ROW}),
    text(names, y + ROW / 2, cut(row.label, names), {class: "name", "text-anchor": "end", dy: "0.35em"}),
    bar(row.before, "was", 5, 7),
    bar(row.after, "is", 13, 9),
    text(width, y + ROW / 2, change(row), {class: "value", "text-anchor": "end", dy: "0.35em"}),
  );
  return row.link ? link(group, row.link) : group;
}
