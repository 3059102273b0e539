// Bars lying down, one row for each class: for names too long to stand below upright bars.
//
//   rowBars([{label: "Ankle boot", value: 1.2e6}], "attention weight", 400);    // {nodes, height}, for frame()
import {cut, line, reading, scale, text, textWidth} from "viewer/charts/axes";
import {legendWidth, paints, roleLegend} from "viewer/charts/labels";
import {set, svg} from "viewer/core/dom";
import {number} from "viewer/core/format";
import {link} from "viewer/core/highlight";

const ROW = 23;

/** The radius of a bar's corners: a bar of no length has none. */
export const round = (length) => Math.min(2, length / 2);

/** The group of one row: linked, and a button if it can be clicked. */
export function rowGroup(row, some, ...children) {
  const group = svg("g", {class: `bar ${row.emphasis ?? ""}`, style: paints(row, some)}, ...children);
  if (row.link) link(group, row.link);
  if (row.onclick) {
    set(group, {role: "button", tabindex: 0, "aria-label": `${row.label}: ${number(row.value)}`});
    group.addEventListener("click", row.onclick);
    group.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      row.onclick(event);
    });
  }
  return group;
}

export function rowBars(rows, unit, width) {
  const {format, most} = reading(unit);
  const values = rows.map((row) => row.value ?? 0),
    emphases = rows.map((row) => row.emphasis).filter(Boolean);
  const names = Math.min(
    width * 0.42,
    Math.max(...rows.map((row) => textWidth(row.label, 12, Boolean(row.emphasis)))) + 2,
  );
  const numbers = Math.max(...values.map((value) => textWidth(format(value), 11, true))) + 8;
  const lo = Math.min(0, ...values),
    hi = Math.max(most ?? 0, ...values, lo < 0 ? 0 : 1e-300);
  const left = names + 10 + (lo < 0 ? numbers : 0),
    x = scale([lo, hi], [left, width - numbers]);
  const top = unit || emphases.length ? 28 : 6;
  return {
    height: top + rows.length * ROW + 4,
    nodes: [
      text(0, 12, cut(unit, width - legendWidth(emphases) - 10), {class: "axis-label"}),
      roleLegend(emphases, width, 12),
      rows.map((row, i) => oneRow(row, top + i * ROW, {x, names, width, format, some: emphases.length > 0})),
      line(x(0), top, x(0), top + rows.length * ROW, {class: "zero"}),
    ],
  };
}

function oneRow(row, y, {x, names, width, format, some}) {
  const value = row.value ?? 0,
    from = Math.min(x(0), x(value)),
    to = Math.max(x(0), x(value));
  return rowGroup(
    row,
    some,
    svg("rect", {class: "hit", x: 0, y, width, height: ROW}),
    text(names, y + ROW / 2, cut(row.label, names), {class: "name", "text-anchor": "end", dy: "0.35em"}),
    svg("rect", {
      class: "fill",
      x: from,
      y: y + 4,
      width: Math.max(0.75, to - from),
      height: ROW - 8,
      rx: round(to - from),
    }),
    text(value < 0 ? from - 5 : to + 5, y + ROW / 2, format(value), {
      class: "value",
      "text-anchor": value < 0 ? "end" : "start",
      dy: "0.35em",
    }),
  );
}
