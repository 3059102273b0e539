// Attention over training time: a bar for each range of steps, tasks below, a brush and a marker.
//
//   const chart = timeline({first: [0, 50], last: [50, 100], values: [3, -1], unit: "attention", onbrush: (a, b) => ...});
//   chart.set({brush: [0, 50], marker: 80});       // changes both without drawing again
//
// `last` is left out of its bar. A brush is drawn by dragging, or by the keyboard (Enter, then arrows); Escape removes it.
import {area, cut, domain, frame, line, place, room, scale, text, textWidth, ticks, xAxis, yAxis} from "viewer/charts/axes";
import {brushOf} from "viewer/charts/brush";
import {nothing} from "viewer/charts/labels";
import {markerOf} from "viewer/charts/marker";
import {set, svg} from "viewer/core/dom";
import {number} from "viewer/core/format";

export function timeline({
  first,
  last,
  values,
  unit = "",
  bands = [],
  brush = null,
  onbrush = null,
  marker = null,
  caption = "",
  width,
  height = 200,
}) {
  const bins = values.map((value, i) => ({value: value ?? 0, ...edges(first, last, i, values.length)}));
  const state = {brush, marker};
  const draw = (drawnWidth, drawnHeight, chart) => {
    if (!bins.length) return nothing(drawnWidth, Math.min(drawnHeight, 120));
    const {nodes, parts} = drawn(bins, {unit, bands, onbrush, state}, drawnWidth, drawnHeight, chart);
    Object.assign(state, {parts});
    put(state);
    return {nodes};
  };
  const name = caption || unit || "over training time",
    role = onbrush ? "group" : "img";
  const chart = frame({name, describe: described(bins, bands), width, height, draw, kind: "timeline", role});
  chart.set = (changes) => {
    Object.assign(state, changes);
    put(state);
  };
  chart.setAttribute("data-listens", "");
  chart.addEventListener("linked", ({detail}) => state.parts?.cursor(detail?.step ?? null));
  return chart;
}

/** `first` and `last` are lists, or the ends of all bars, which then are equally wide. */
function edges(first, last, i, count) {
  if (Array.isArray(first)) return {from: first[i], to: last[i]};
  return {from: first + ((last - first) * i) / count, to: first + ((last - first) * (i + 1)) / count};
}

function described(bins, bands) {
  if (!bins.length) return "no steps";
  const most = bins.reduce((a, b) => (Math.abs(b.value) > Math.abs(a.value) ? b : a));
  const tasks = bands.map((band) => `${band.label}: steps ${number(band.first)} to ${number(band.last)}`).join("; ");
  return `${bins.length} ranges of steps; largest ${number(most.value)}, ${steps(most)}. ${tasks}`;
}

function steps({from, to}) {
  const [a, b] = [Math.round(from), Math.round(to) - 1];
  return b <= a ? `step ${number(a)}` : `steps ${number(a)} to ${number(b)}`;
}

/** Where bands are the tasks' time, a bar has the colour of its task. */
function colourOf({from, to}, bands) {
  const middle = (from + to) / 2;
  return bands.find((band) => band.first <= middle && middle <= band.last + 1)?.colour ?? "var(--accent)";
}

function drawn(bins, {unit, bands, onbrush, state}, width, height, chart) {
  const range = domain(bins.map((bin) => bin.value)),
    marks = ticks(...range, 4);
  const box = {left: room(marks), right: width - 8, top: 36, bottom: height - 36 - (bands.length ? 24 : 0)};
  const x = scale([bins[0].from, bins.at(-1).to], [box.left, box.right]),
    y = scale(range, [box.bottom, box.top]);
  const readout = text(box.right, 12, "", {class: "readout", "text-anchor": "end"});
  const notify =
    onbrush &&
    ((a, b) => {
      state.brush = a === null ? null : [a, b];
      onbrush(a, b);
    });
  const rule = line(0, box.top, 0, box.bottom, {class: "cursor-line", visibility: "hidden"});
  const cursor = (step) =>
    set(rule, step === null ? {visibility: "hidden"} : {visibility: "visible", x1: x(step), x2: x(step)});
  const parts = {
    cursor,
    brush: brushOf({bins, x, box, chart, onbrush: notify}),
    marker: markerOf({xs: [], x, box, chart, state}),
  };
  const hit = hovering(bins, {x, box, chart, readout});
  return {
    parts,
    nodes: [
      yAxis(marks, y, box.left, box.right),
      bins.map((bin) => binBar(bin, x, y, bands)),
      line(box.left, y(0), box.right, y(0), {class: "zero"}),
      xAxis(ticks(bins[0].from, bins.at(-1).to, Math.max(2, Math.floor(width / 110))), x, box.bottom),
      bands.map((band) => bandMark(band, x, box)),
      text(0, 12, cut(unit, width * 0.6), {class: "axis-label"}),
      readout,
      text(box.right, height - 2, "training step", {class: "axis-label", "text-anchor": "end"}),
      rule,
      hit,
      parts.brush.nodes(hit),
      parts.marker.node,
    ],
  };
}

function binBar({from, to, value}, x, y, bands) {
  const binWidth = x(to) - x(from),
    gap = binWidth > 5 ? 1 : 0,
    [high, low] = [Math.min(y(0), y(value)), Math.max(y(0), y(value))];
  return svg("rect", {
    class: "bin",
    x: x(from) + gap / 2,
    y: high,
    width: Math.max(0.5, binWidth - gap),
    height: Math.max(0.5, low - high),
    style: {"--own": colourOf({from, to}, bands)},
  });
}

/** A task's time as a strip below the numbers of the axis. */
function bandMark({label, first, last, colour}, x, box) {
  const from = Math.max(box.left, x(first)),
    to = Math.min(box.right, x(last + 1)),
    y = box.bottom + 26;
  if (!(to > from)) return null;
  return svg(
    "g",
    {class: "band"},
    svg("rect", {
      x: from + 1,
      y,
      width: Math.max(1, to - from - 2),
      height: 5,
      rx: 2.5,
      style: {fill: colour ?? "var(--quiet)"},
    }),
    textWidth(label) < to - from && text((from + to) / 2, y + 18, label, {class: "tick", "text-anchor": "middle"}),
  );
}

function put({parts, brush}) {
  parts?.brush.put(brush);
  parts?.marker.put();
}

/** Says steps and value of the bar under the pointer. */
function hovering(bins, {x, box, chart, readout}) {
  const glow = svg("rect", {
    class: "glow",
    y: box.top,
    height: box.bottom - box.top,
    visibility: "hidden",
    "pointer-events": "none",
  });
  const move = (event) => {
    const step = x.invert(place(chart, event).x),
      bin = bins.find(({from, to}) => from <= step && step < to);
    glow.setAttribute("visibility", bin ? "visible" : "hidden");
    readout.textContent = bin ? `${steps(bin)} · ${number(bin.value)}` : "";
    if (bin) set(glow, {x: x(bin.from), width: x(bin.to) - x(bin.from)});
  };
  const out = () => {
    glow.setAttribute("visibility", "hidden");
    readout.textContent = "";
  };
  return svg("g", {}, glow, area(box, {onpointermove: move, onpointerleave: out}, 20));
}
