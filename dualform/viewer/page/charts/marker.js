// The line at the chosen step of a chart; with `onpick` it is a slider, for the pointer and the keyboard.
//
//   const marker = markerOf({xs: [0, 250], x, box, chart, state: {marker: 250}, onpick: (step) => ..., onput: (step) => ...});
//   svg.append(marker.node); marker.put();         // after state.marker has changed
import {line, place, text, textWidth} from "viewer/charts/axes";
import {set, svg} from "viewer/core/dom";
import {number} from "viewer/core/format";

/** The number of the entry of `xs` that is nearest to a value. */
export function closest(xs, value) {
  return xs.reduce((best, _, i) => (Math.abs(xs[i] - value) < Math.abs(xs[best] - value) ? i : best), 0);
}

export function markerOf({xs, x, box, chart, state, onpick, onput}) {
  const label = text(0, box.top - 9, "", {class: "tick"});
  const node = svg(
    "g",
    {class: onpick ? "marker slider" : "marker"},
    svg("rect", {class: "hit", x: -9, y: box.top - 4, width: 18, height: box.bottom - box.top + 8}),
    line(0, box.top - 4, 0, box.bottom),
    onpick && svg("circle", {class: "grip", cy: box.bottom, r: 5}),
  );
  const put = () => {
    const step = state.marker ?? null,
      px = step === null ? 0 : Math.min(box.right, Math.max(box.left, x(step)));
    set(node, {visibility: step === null ? "hidden" : "visible", transform: `translate(${px} 0)`});
    label.textContent = step === null ? "" : `step ${number(step)}`;
    const labelWidth = textWidth(label.textContent);
    label.setAttribute("x", Math.max(box.left, Math.min(box.right - labelWidth, px - labelWidth / 2)));
    if (onpick) set(node, {"aria-valuenow": step ?? xs[0], "aria-valuetext": label.textContent});
    onput?.(step);
  };
  const pick = (i, notify = true) => {
    state.marker = xs[Math.max(0, Math.min(xs.length - 1, i))];
    put();
    if (notify) onpick?.(state.marker);
  };
  if (onpick) slide(node, {xs, x, chart, state, pick});
  return {node: svg("g", {}, label, node), put, pick};
}

function slide(node, {xs, x, chart, state, pick}) {
  set(node, {
    role: "slider",
    tabindex: 0,
    "aria-label": "training step",
    "aria-valuemin": xs[0],
    "aria-valuemax": xs.at(-1),
  });
  let held = null; // the step where the pointer took it
  node.addEventListener("pointerdown", (event) => {
    held = {from: state.marker};
    node.setPointerCapture(event.pointerId);
    event.preventDefault();
    node.focus();
  });
  node.addEventListener("pointermove", (event) => {
    const i = closest(xs, x.invert(place(chart, event).x));
    if (held && (held.moved || xs[i] !== xs[closest(xs, held.from)])) {
      held.moved = true;
      pick(i, false);
    }
  });
  node.addEventListener("pointerup", () => {
    if (held?.moved) pick(closest(xs, state.marker));
    held = null;
  });
  node.addEventListener("keydown", (event) => {
    const now = closest(xs, state.marker),
      back = now - 1,
      on = now + 1;
    const to = {ArrowLeft: back, ArrowDown: back, ArrowRight: on, ArrowUp: on, Home: 0, End: xs.length - 1}[event.key];
    if (to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    pick(to);
  });
}
