// What all charts share: a frame that redraws itself to the width it gets, scales, ticks, axes, and room for text.
//
//   return frame({height: 240, name: "Attention per class", draw: (width, height) => [yAxis(...), ...]});
//   const y = scale([0, 1], [200, 10]); y(0.5);    // 105
import {svg} from "viewer/core/dom";
import {percent, short} from "viewer/core/format";

export const TEXT = 12; // size of a chart's text, in the page's pixels
const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';
let canvas = null;

/** How wide a text is. */
export function textWidth(text, size = TEXT, bold = false) {
  canvas ??= document.createElement("canvas").getContext("2d");
  canvas.font = `${bold ? 600 : 400} ${size}px ${FONT}`;
  return canvas.measureText(String(text)).width;
}

/** The text, or as much of it as there is room for. */
export function cut(text, room, size = TEXT) {
  let kept = String(text);
  if (textWidth(kept, size) <= room) return kept;
  while (kept.length > 1 && textWidth(`${kept}…`, size) > room) kept = kept.slice(0, -1);
  return `${kept.trimEnd()}…`;
}

/** A linear scale from a domain to a range. */
export function scale([a, b], [p, q]) {
  const slope = b === a ? 0 : (q - p) / (b - a);
  const map = (x) => p + (x - a) * slope;
  map.invert = (pixel) => (slope ? a + (pixel - p) / slope : a);
  return map;
}

/** Round numbers from lo to hi, about `count` of them. */
export function ticks(lo, hi, count = 4) {
  if (!(hi > lo)) return [lo];
  const rough = (hi - lo) / Math.max(1, count),
    power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 2.5, 5, 10].find((m) => m * power >= rough * 0.999) ?? 10);
  const from = Math.ceil(lo / step - 1e-9),
    to = Math.floor(hi / step + 1e-9);
  return Array.from({length: to - from + 1}, (_, i) =>
    from + i === 0 ? 0 : Number(((from + i) * step).toPrecision(12)),
  );
}

/** The range of the values, with 0 in it unless `floating`. */
export function domain(values, floating = false) {
  let lo = floating ? Infinity : 0,
    hi = floating ? -Infinity : 0;
  for (const value of values)
    if (Number.isFinite(value)) {
      lo = Math.min(lo, value);
      hi = Math.max(hi, value);
    }
  if (!(lo < hi)) return lo > 0 && lo < Infinity ? [0, lo] : [0, 1];
  return [lo, hi];
}

export const text = (x, y, content, attributes = {}) => svg("text", {x, y, ...attributes}, content);
export const line = (x1, y1, x2, y2, attributes = {}) => svg("line", {x1, y1, x2, y2, ...attributes});

/** Horizontal grid lines with numbers at their left; `room` is the width that the numbers need. */
export function yAxis(marks, y, left, right, format = short) {
  return svg(
    "g",
    {class: "axis"},
    marks.map((mark) => [
      line(left, y(mark), right, y(mark), {class: mark === 0 ? "zero" : "grid"}),
      text(left - 8, y(mark), format(mark), {class: "tick", "text-anchor": "end", dy: "0.35em"}),
    ]),
  );
}

/** How values of this unit are read: shares as per cent of `most`, everything else as a short number. */
export function reading(unit) {
  if (/%/.test(unit ?? "")) return {format: (value) => percent(value / 100), most: 100};
  return /^(probability|accuracy|share)\b/i.test(unit ?? "") ? {format: percent, most: 1} : {format: short, most: null};
}

export const room = (marks, format = short) => Math.max(0, ...marks.map((mark) => textWidth(format(mark)))) + 10;

/** Numbers below a horizontal axis; the last one stays inside. */
export function xAxis(marks, x, bottom, format = short) {
  return svg(
    "g",
    {class: "axis"},
    marks.map((mark) => [
      line(x(mark), bottom, x(mark), bottom + 4, {class: "mark"}),
      text(x(mark), bottom + 17, format(mark), {class: "tick", "text-anchor": "middle"}),
    ]),
  );
}

/** The part of a plot that follows the pointer; `below` is how far it goes beyond the axis. */
export function area({left, right, top, bottom}, attributes, below = 0) {
  return svg("rect", {
    class: "hit",
    x: left,
    y: top,
    width: Math.max(1, right - left),
    height: bottom - top + below,
    ...attributes,
  });
}

/** Where in the chart's own measure the pointer is. */
export function place(chart, event) {
  return new DOMPoint(event.clientX, event.clientY).matrixTransform(chart.getScreenCTM().inverse());
}

const widths = new Map(); // of charts drawn before: the next one of that name is right at once

/** An <svg> that is drawn again when its width changes, so that text keeps its size; hovering never redraws. */
export function frame({name, describe = "", width = 560, height = 240, role = "img", draw, kind = ""}) {
  const chart = svg("svg", {class: `chart ${kind}`, role, "aria-label": name || "chart"}),
    key = `${kind} ${name}`;
  let now = {available: 0, zoom: 1};
  const redraw = (available, zoom) => {
    now = {available, zoom};
    const broad = Math.max(160, available),
      tall = heightFor(height, broad, zoom),
      {nodes, height: needed = tall} = draw(broad, tall, chart);
    chart.setAttribute("viewBox", `0 0 ${broad} ${needed}`);
    chart.replaceChildren(svg("desc", {}, describe || name || ""), ...nodes.flat(Infinity).filter(Boolean));
  };
  const fit = () => {
    const zoom = Number(getComputedStyle(chart).getPropertyValue("--zoom")) || 1,
      available = Math.round(chart.clientWidth / zoom);
    if (!available || (Math.abs(available - now.available) <= 2 && zoom === now.zoom)) return;
    if (zoom === 1) widths.set(key, available);
    redraw(available, zoom);
  };
  redraw(widths.get(key) ?? width, 1);
  new ResizeObserver(() => requestAnimationFrame(fit)).observe(chart); // in the next frame: a new height is a new size
  return chart;
}

/** Wide charts are a little taller; enlarged ones fill the window. */
function heightFor(height, available, zoom) {
  const most = zoom > 1 ? (innerHeight - 220) / zoom : height * 1.35;
  return Math.max(height, Math.min(available * (zoom > 1 ? 0.5 : 0.3), most));
}
