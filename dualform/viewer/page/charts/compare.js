// Before and after, in pairs: probabilities with all slots, without the muted ones and, if it was done, trained again.
//
//   compare({rows: [{label: "3", before: 0.97, after: 0.12, link: {class: 3}}]});
//   compare({rows: [{label: "3", before: 0.97, after: 0.12, again: 0.55}], unit: "probability of each class"});
import {cut, frame, line, scale, text, textWidth} from "viewer/charts/axes";
import {nothing, paints} from "viewer/charts/labels";
import {svg} from "viewer/core/dom";
import {percent} from "viewer/core/format";
import {link} from "viewer/core/highlight";

// What is compared: the entry of a row, the class of its bars, its name, and where its bar is in a row.
const TWO = [
  {entry: "before", kind: "was", name: "before", down: 5, tall: 7},
  {entry: "after", kind: "is", name: "after", down: 13, tall: 9},
];
const THREE = [
  {entry: "before", kind: "was", name: "before", down: 4, tall: 7},
  {entry: "after", kind: "is", name: "muted", down: 12, tall: 8},
  {entry: "again", kind: "again", name: "trained again", down: 22, tall: 7},
];
const ROW = 28,
  HIGH_ROW = 34;

export function compare({rows, unit = "probability", caption = "", width, height = 120}) {
  const series = rows.some(({again}) => again !== undefined) ? THREE : TWO;
  const draw = (drawnWidth) => (rows.length ? pairs(rows, series, unit, drawnWidth) : nothing(drawnWidth, height));
  const describe = rows.map((row) => `${row.label}: ${change(row, series)}`).join("; ");
  const name = caption || `${unit}, before and after muting${series === THREE ? ", and trained again" : ""}`;
  return frame({name, describe, width, height, draw, kind: "compare"});
}

/** Whole per cent: a change that this does not show is not worth a word. */
function rounded(p) {
  if (!Number.isFinite(p)) return percent(p);
  if (p < 0.005) return "<1%";
  return p >= 0.995 ? ">99%" : `${Math.round(p * 100)}%`;
}

const moved = (row, series) => new Set(series.map(({entry}) => rounded(row[entry]))).size > 1;

function change(row, series) {
  if (!moved(row, series)) return rounded(row.after);
  return series.map(({entry}) => rounded(row[entry])).join(series === THREE ? " · " : " → ");
}

function pairs(rows, series, unit, width) {
  const names = Math.min(width * 0.34, Math.max(...rows.map((row) => textWidth(row.label, 12, true))) + 2);
  const words = Math.max(...rows.map((row) => textWidth(change(row, series), 12, true))) + 10,
    top = 28,
    tall = series === THREE ? HIGH_ROW : ROW;
  const x = scale([0, 1], [names + 10, width - words]);
  const some = rows.some((row) => row.emphasis);
  const all = svg(
    "g",
    {},
    rows.map((row, i) => pair(row, top + i * tall, {x, names, width, some, series, tall})),
  );
  const [keys, left] = legend(series, width);
  return {
    height: top + rows.length * tall + 4,
    nodes: [
      text(0, 12, cut(unit, left - 10), {class: "axis-label"}),
      keys,
      [0, 0.5, 1].map((mark) => line(x(mark), top, x(mark), top + rows.length * tall, {class: mark ? "grid" : "zero"})),
      all,
    ],
  };
}

/** The names of what is compared, at the right; and where they begin. */
function legend(series, width) {
  let x = width - series.reduce((sum, {name}) => sum + textWidth(name) + 28, -12);
  const left = x;
  const keys = series.map(({kind, name}) => {
    const key = [
      svg("rect", {class: kind, x, y: 3, width: 10, height: 10, rx: 2}),
      text(x + 16, 12, name, {class: "tick"}),
    ];
    x += textWidth(name) + 28;
    return key;
  });
  return [svg("g", {class: "legend"}, keys), left];
}

function pair(row, y, {x, names, width, some, series, tall}) {
  const long = (value) => Math.max(0.75, x(Math.min(1, Math.max(0, value ?? 0))) - x(0));
  const bar = ({entry, kind, down, tall: height}) =>
    svg("rect", {class: kind, x: x(0), y: y + down, width: long(row[entry]), height, rx: 1.5});
  const paint = some && !row.emphasis ? {"--paint": "var(--strong-line)"} : {}; // not the grey of "before"
  const middle = y + tall / 2;
  const group = svg(
    "g",
    {
      class: `pair ${moved(row, series) ? "moved" : ""} ${row.emphasis ?? ""}`,
      style: {...paints(row, some), ...paint},
    },
    svg("rect", {class: "hit", x: 0, y, width, height: tall}),
    text(names, middle, cut(row.label, names), {class: "name", "text-anchor": "end", dy: "0.35em"}),
    series.map(bar),
    text(width, middle, change(row, series), {class: "value", "text-anchor": "end", dy: "0.35em"}),
  );
  return row.link ? link(group, row.link) : group;
}
