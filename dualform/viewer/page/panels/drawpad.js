// A pad to draw on with mouse, finger or pen, and the strokes as requests take them: base64url, two bytes a point.
//
//     const pad = drawpad((drawn) => state.set({input: `drawn:${drawn}`}, {replace: true}));
//     pad.restore(drawn);                      // strokes from an address
import {inReport} from "viewer/core/ask";
import {el} from "viewer/core/dom";
import {button} from "viewer/core/elements";

const UNITS = 254; // the pad's width and height in points of the code
const LIFT = 255; // written twice: the pen leaves the pad
const NEAR = 1.5; // units within which a point adds nothing
const MAX_POINTS = 600; // so that an address stays an address
const PEN = 22; // units: about the width of a digit's stroke in the training images

export const canDraw = (run) => !run.cannot.draw && run.kind === "images" && !inReport;

/** The code of strokes, each a list of [x, y]. */
export function encode(strokes) {
  const bytes = strokes.flatMap((stroke, k) => [...(k ? [LIFT, LIFT] : []), ...stroke.flat()]);
  return btoa(String.fromCharCode(...bytes))
    .replaceAll("+", "-")
    .replaceAll("/", "_")
    .replace(/=+$/, "");
}

/** The strokes of a code; what is not one gives none. */
export function decode(code) {
  let text = "";
  try {
    text = atob(code.replaceAll("-", "+").replaceAll("_", "/"));
  } catch {
    return [];
  }
  const strokes = [[]];
  for (let i = 0; i + 1 < text.length; i += 2) {
    const point = [text.charCodeAt(i), text.charCodeAt(i + 1)];
    if (point[0] === LIFT && point[1] === LIFT) strokes.push([]);
    else strokes.at(-1).push(point);
  }
  return strokes.filter((stroke) => stroke.length);
}

function paint(canvas, strokes) {
  const context = canvas.getContext("2d"),
    scale = canvas.width / UNITS;
  context.clearRect(0, 0, canvas.width, canvas.height);
  context.strokeStyle = getComputedStyle(canvas).color;
  Object.assign(context, {lineWidth: PEN * scale, lineCap: "round", lineJoin: "round"});
  for (const stroke of strokes) {
    context.beginPath();
    context.moveTo(stroke[0][0] * scale, stroke[0][1] * scale);
    for (const [x, y] of stroke.length > 1 ? stroke.slice(1) : stroke) context.lineTo(x * scale, y * scale);
    context.stroke();
  }
}

function pointOf(canvas, {clientX, clientY}) {
  const box = canvas.getBoundingClientRect();
  const unit = (at, from, size) => Math.round(Math.min(1, Math.max(0, (at - from) / size)) * UNITS);
  return [unit(clientX, box.left, box.width), unit(clientY, box.top, box.height)];
}

function apart([a, b], [c, d]) {
  return Math.hypot(a - c, b - d) >= NEAR;
}

/** {element, restore(code)}; calls ondraw(code) with every change, at most once a frame. */
export function drawpad(ondraw) {
  const label = "Draw pad: draw with mouse, finger or pen";
  const canvas = el("canvas", {
    class: "pad",
    width: 340,
    height: 340,
    role: "img",
    "aria-label": label,
    "data-test": "drawpad",
  });
  let strokes = [],
    pen = null,
    frame = null;
  const undo = button("Undo stroke", () => change(strokes.slice(0, -1)), {"data-test": "undo-stroke"});
  const clear = button("Clear", () => change([]), {"data-test": "clear-pad"});
  const count = () => strokes.reduce((sum, stroke) => sum + stroke.length + 1, 0);

  const show = () => {
    paint(canvas, strokes);
    undo.disabled = clear.disabled = !strokes.length;
  };
  const notify = () => {
    frame ??= requestAnimationFrame(() => {
      frame = null;
      ondraw(encode(strokes));
    });
  };
  const change = (next) => {
    strokes = next;
    show();
    notify();
  };
  const add = (event) => {
    const point = pointOf(canvas, event),
      stroke = strokes.at(-1);
    if (count() < MAX_POINTS && (!stroke.length || apart(point, stroke.at(-1)))) stroke.push(point);
  };

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || count() >= MAX_POINTS) return;
    pen = event.pointerId;
    canvas.setPointerCapture(pen);
    strokes = [...strokes, []];
    add(event);
    change(strokes);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (event.pointerId !== pen) return;
    for (const part of event.getCoalescedEvents?.() ?? []) add(part);
    add(event);
    change(strokes);
  });
  const lift = (event) => {
    if (event.pointerId === pen) pen = null;
  };
  canvas.addEventListener("pointerup", lift);
  canvas.addEventListener("pointercancel", lift);
  // The ink has the colour of the page's text, which changes with the theme.
  const themes = new MutationObserver(show);
  themes.observe(document.documentElement, {attributeFilter: ["data-theme"]});

  const restore = (code) => {
    if (pen !== null || frame !== null || encode(strokes) === code) return;
    strokes = decode(code);
    show();
  };
  show();
  const element = el("div", {class: "pad-box"}, canvas, el("div", {class: "row"}, undo, clear));
  return {element, restore, close: () => themes.disconnect()};
}
