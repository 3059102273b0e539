// Curves, one for each class: its highest attention weights, downwards by rank.
//
//   curves({series: [{label: "3", values: [9, 7, 4], link: {class: 3}, emphasis: "true"}]});
//   curves({series, x: "rank in its class", y: "attention weight", caption: "Top 500 of each class"});
//
// Curves with a role are thick, coloured and named at their ends; the others are grey, and the nearest lights up.
import {area, cut, domain, frame, line, place, room, scale, text, textWidth, ticks, xAxis, yAxis} from "viewer/charts/axes";
import {legendWidth, nothing, paints, ROLE_WORDS, roleLegend, spread} from "viewer/charts/labels";
import {set, svg} from "viewer/core/dom";
import {number} from "viewer/core/format";
import {light, link} from "viewer/core/highlight";

const NEAR = 60; // how far from a curve the pointer may be to light it

export function curves({series, x = "rank", y = "attention weight", caption = "", width, height = 280}) {
  const drawn = series.filter((curve) => curve.values.some(Number.isFinite));
  const draw = (drawnWidth, drawnHeight, chart) =>
    drawn.length
      ? curvesIn(drawn, {x, y}, drawnWidth, drawnHeight, chart)
      : nothing(drawnWidth, Math.min(drawnHeight, 120));
  const role = (curve) => (curve.emphasis ? ` (${ROLE_WORDS[curve.emphasis]})` : "");
  const describe = drawn
    .map((curve) => `${curve.label}${role(curve)}: ${number(curve.values[0])} down to ${number(curve.values.at(-1))}`)
    .join("; ");
  return frame({name: caption || `${y} by ${x}`, describe, width, height, draw, kind: "curves"});
}

/** What stands at the end of a curve; a task is told by its colour. */
const nameOf = (curve) => curve.name ?? curve.label;

function curvesIn(series, words, width, height, chart) {
  const all = series.flatMap((curve) => curve.values.filter(Number.isFinite)),
    most = Math.max(...series.map((curve) => curve.values.length), 2);
  const range = domain(all, Math.min(...all) > 0.5 * Math.max(...all)),
    marks = ticks(...range, 4);
  const names = Math.min(width * 0.28, Math.max(...series.map((curve) => textWidth(nameOf(curve), 12, true))) + 14);
  const box = {left: room(marks), right: width - names, top: 30, bottom: height - 36};
  const x = scale([1, most], [box.left, box.right]),
    y = scale(range, [box.bottom, box.top]);
  const emphases = series.map((curve) => curve.emphasis).filter(Boolean),
    some = emphases.length > 0;
  const ends = series.map((curve) => ({
    curve,
    important: Boolean(curve.emphasis),
    want: y(curve.values.findLast(Number.isFinite)),
  }));
  const labels = spread(ends, 14, box.top, box.bottom);
  const groups = labels
    .map((label) => curveGroup(label, {x, y, some, names, right: box.right}))
    .sort((a, b) => a.classList.contains("strong") - b.classList.contains("strong"));
  return {
    nodes: [
      yAxis(marks, y, box.left, box.right),
      xAxis(
        [1, ...ticks(1, most, 5).filter((mark) => mark > 1 && mark > most * 0.07 && Number.isInteger(mark))],
        x,
        box.bottom,
      ),
      line(box.left, box.bottom, box.right, box.bottom, {class: "zero"}),
      text(0, 12, cut(words.y, width - legendWidth(emphases) - 10), {class: "axis-label"}),
      text(box.right, height - 2, words.x, {class: "axis-label", "text-anchor": "end"}),
      roleLegend(emphases, width, 12),
      groups,
      hovering(series, {x, y, box, chart}),
    ],
  };
}

function curveGroup({curve, y: at, crowded}, {x, y, some, names, right}) {
  const known = curve.values.map((value, i) => [x(i + 1), y(value)]).filter(([, py]) => Number.isFinite(py));
  const points = known.map(([px, py]) => `${px.toFixed(1)},${py.toFixed(1)}`),
    end = known.at(-1);
  const group = svg(
    "g",
    {class: `curve ${curve.emphasis ? "strong" : ""}`, style: paints(curve, some)},
    svg("path", {class: "stroke", d: `M${points.join("L")}`}),
    points.length === 1 && svg("circle", {class: "dot", cx: end[0], cy: end[1], r: 3}),
    text(right + 8, at, cut(nameOf(curve), names - 8), {class: crowded ? "end crowded" : "end", dy: "0.35em"}),
  );
  return curve.link ? link(group, curve.link) : group;
}

/** Lights the curve nearest to the pointer and says its name, rank and value at the top. */
function hovering(series, {x, y, box, chart}) {
  const dot = svg("circle", {class: "cursor", r: 4, visibility: "hidden"});
  const readout = text(box.right, box.top + 2, "", {class: "readout", "text-anchor": "end"});
  const out = () => {
    dot.setAttribute("visibility", "hidden");
    readout.textContent = "";
    light(null);
  };
  const move = (event) => {
    const at = place(chart, event),
      rank = Math.max(1, Math.round(x.invert(at.x)));
    const near = nearest(series, rank - 1, at.y, y);
    if (!near) return out();
    const value = near.values[rank - 1];
    set(dot, {cx: x(rank), cy: y(value), visibility: "visible"});
    readout.textContent = `${near.label} · rank ${number(rank)} · ${number(value)}`;
    return light(near.link ?? null);
  };
  const hit = area(box, {"data-lights": "", onpointermove: move, onpointerleave: out});
  return [dot, readout, hit];
}

function nearest(series, i, at, y) {
  const far = (curve) => Math.abs(y(curve.values[i]) - at),
    known = series.filter((curve) => far(curve) <= NEAR);
  return known.length ? known.reduce((a, b) => (far(b) < far(a) ? b : a)) : null;
}
