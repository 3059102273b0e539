// Lines over training time, such as accuracy or probability, with a marker to choose a step.
//
//   const chart = lines({x: [0, 250], series: [{label: "mnist", values: [0.1, 0.98]}], ylabel: "accuracy", onpick: (step) => ...});
//   chart.set({marker: 250});                      // moves the marker without drawing again
import {area, cut, domain, frame, line, place, room, scale, text, textWidth, ticks, xAxis, yAxis} from "viewer/charts/axes";
import {legendWidth, nothing, paints, roleLegend, spread} from "viewer/charts/labels";
import {closest, markerOf} from "viewer/charts/marker";
import {set, svg} from "viewer/core/dom";
import {number, percent, short} from "viewer/core/format";
import {light, link} from "viewer/core/highlight";

export function lines({
  x,
  series,
  xlabel = "training step",
  ylabel = "",
  marker = null,
  onpick = null,
  caption = "",
  width,
  height = 240,
}) {
  const state = {marker};
  const known = series.filter((entry) => entry.values.some(Number.isFinite));
  const draw = (drawnWidth, drawnHeight, chart) => {
    if (!x.length || !known.length) return nothing(drawnWidth, Math.min(drawnHeight, 120));
    const {nodes, put} = drawn(x, known, {xlabel, ylabel, onpick, state}, drawnWidth, drawnHeight, chart);
    state.put = put;
    put();
    return {nodes};
  };
  const describe = known
    .map((entry) => `${entry.label}: from ${number(entry.values[0])} to ${number(entry.values.at(-1))}`)
    .join("; ");
  const role = onpick ? "group" : "img";
  const chart = frame({
    name: caption || ylabel || "over training time",
    describe,
    width,
    height,
    draw,
    kind: "lines",
    role,
  });
  chart.set = (changes) => {
    Object.assign(state, changes);
    state.put?.();
  };
  return chart;
}

const share = (values) => values.every((value) => !Number.isFinite(value) || (value >= 0 && value <= 1));

function drawn(xs, series, {xlabel, ylabel, onpick, state}, width, height, chart) {
  const all = series.flatMap((entry) => entry.values),
    shares = share(all),
    format = shares ? (p) => `${Math.round(p * 100)}%` : short;
  const range = shares ? [0, 1] : domain(all),
    marks = shares ? [0, 0.25, 0.5, 0.75, 1] : ticks(...range, 4);
  const names = Math.min(width * 0.3, Math.max(...series.map((entry) => textWidth(entry.label, 12, true))) + 14);
  const box = {left: room(marks, format), right: width - names, top: 36, bottom: height - 36};
  const x = scale([xs[0], Math.max(xs.at(-1), xs[0] + 1)], [box.left + 4, box.right]),
    y = scale(range, [box.bottom, box.top]);
  const important = (entry) => series.length <= 4 || Boolean(entry.emphasis);
  const ends = series.map((entry) => ({
    entry,
    important: important(entry),
    want: y(entry.values.findLast(Number.isFinite)),
  }));
  const labels = spread(ends, 15, box.top, box.bottom);
  const readout = text(width, 12, "", {class: "readout", "text-anchor": "end"});
  const emphases = series.map((entry) => entry.emphasis).filter(Boolean),
    some = emphases.length > 0;
  const legend = roleLegend(emphases, width, 12);
  const groups = labels.map((label) => lineGroup(label, xs, {x, y, right: box.right, names, some}));
  const dots = series.map((entry) =>
    svg("circle", {class: "dot", r: 3.5, visibility: "hidden", style: paints(entry, some)}),
  );
  const onput = (step) => dotsAt(step, dots, xs, series, x, y),
    marker = markerOf({xs, x, box, chart, state, onpick, onput});
  return {
    put: marker.put,
    nodes: [
      yAxis(marks, y, box.left, box.right, format),
      xAxis(ticks(xs[0], xs.at(-1), Math.max(2, Math.floor(width / 110))), x, box.bottom),
      groups.sort((a, b) => a.classList.contains("strong") - b.classList.contains("strong")),
      dots,
      text(0, 12, cut(ylabel, width - legendWidth(emphases) - 10), {class: "axis-label"}),
      legend,
      readout,
      text(box.right, height - 2, xlabel, {class: "axis-label", "text-anchor": "end"}),
      hovering({xs, series, x, y, box, chart, readout, marker, onpick, legend, format: shares ? percent : number}),
      marker.node,
    ],
  };
}

/** Values that are not known leave a gap. */
function pathOf(xs, values, x, y) {
  let pen = "M";
  return values
    .map((value, i) => {
      if (!Number.isFinite(value)) {
        pen = "M";
        return "";
      }
      const part = `${pen}${x(xs[i]).toFixed(1)},${y(value).toFixed(1)}`;
      pen = "L";
      return part;
    })
    .join("");
}

function lineGroup({entry, y: at, crowded}, xs, {x, y, right, names, some}) {
  const d = pathOf(xs, entry.values, x, y);
  const point = (px, value) => svg("circle", {class: "point", cx: x(px), cy: y(value), r: 2});
  const rank = entry.emphasis ? "strong" : some ? "weak" : "";
  const group = svg(
    "g",
    {class: `series ${rank}`, style: paints(entry, some)},
    svg("path", {class: "stroke", d, "stroke-dasharray": entry.dash === true ? "5 4" : entry.dash || null}),
    xs.length <= 30 && entry.values.map((value, i) => Number.isFinite(value) && point(xs[i], value)),
    text(right + 8, at, cut(entry.label, names - 8), {class: crowded ? "end crowded" : "end", dy: "0.35em"}),
  );
  return entry.link ? link(group, entry.link) : group;
}

/** Dots where the lines are at the chosen step, if their values there are known. */
function dotsAt(step, dots, xs, series, x, y) {
  const i = xs.indexOf(step);
  dots.forEach((dot, k) => {
    const value = series[k].values[i],
      there = Number.isFinite(value);
    set(dot, there ? {visibility: "visible", cx: x(step), cy: y(value)} : {visibility: "hidden"});
  });
}

/** Says all values at the step under the pointer; a click chooses it. */
function hovering({xs, series, x, y, box, chart, readout, marker, onpick, legend, format}) {
  const rule = line(0, box.top, 0, box.bottom, {class: "cursor-line", visibility: "hidden"});
  const index = (event) => closest(xs, x.invert(place(chart, event).x));
  const move = (event) => {
    const i = index(event),
      shown = series.length <= 3 ? series : [nearest(series, i, place(chart, event).y, y)];
    const values = shown.map((entry) => `${entry.label} ${format(entry.values[i])}`);
    legend.setAttribute("visibility", "hidden"); // the readout has its place
    readout.textContent = [`step ${number(xs[i])}`, ...values].join(" · ");
    set(rule, {x1: x(xs[i]), x2: x(xs[i]), visibility: "visible"});
    light(nearest(series, i, place(chart, event).y, y).link ?? null);
  };
  const out = () => {
    light(null);
    readout.textContent = "";
    legend.removeAttribute("visibility");
    rule.setAttribute("visibility", "hidden");
  };
  const click = onpick && ((event) => marker.pick(index(event))),
    name = onpick ? "hit pickable" : "hit";
  return [
    rule,
    area(box, {class: name, "data-lights": "", onpointermove: move, onpointerleave: out, onclick: click}, 20),
  ];
}

function nearest(series, i, at, y) {
  const far = (entry) => (Number.isFinite(entry.values[i]) ? Math.abs(y(entry.values[i]) - at) : Infinity);
  return series.reduce((a, b) => (far(b) < far(a) ? b : a));
}
