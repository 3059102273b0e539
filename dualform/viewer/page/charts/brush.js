// A range of steps chosen by dragging over a chart or by keys on its two handles.
//
//   const brush = brushOf({bins, x, box, chart, onbrush: (a, b) => ...});   // (null, null) when removed
//   svg.append(...brush.nodes(hit)); brush.put([100, 200]);
//
// Its ends are always ends of bars: a step in the middle of a bar could not be told from the bar's others.
import {area, place} from "viewer/charts/axes";
import {closest} from "viewer/charts/marker";
import {set, svg} from "viewer/core/dom";
import {number} from "viewer/core/format";

const PAUSE_MS = 250; // after the last key before the answer is asked for

export function brushOf({bins, x, box, chart, onbrush}) {
  const cuts = [bins[0].from, ...bins.map((bin) => bin.to)];
  const nearest = (step) => closest(cuts, step);
  const shape = svg("rect", {class: "brush", y: box.top, height: box.bottom - box.top, "pointer-events": "none"});
  const handles = ["from", "to"].map((end) => handle(end, box));
  const group = svg("g", {class: "brushing", visibility: "hidden"}, shape, handles);
  let range = null,
    telling = null;

  const draw = () => {
    group.setAttribute("visibility", range ? "visible" : "hidden");
    handles.forEach((end) => end.setAttribute("tabindex", range ? "0" : "-1"));
    if (!range) return;
    const [a, b] = range.map((i) => x(cuts[i]));
    shape.setAttribute("x", a);
    shape.setAttribute("width", Math.max(0, b - a));
    handles.forEach((end, k) => {
      const step = cuts[range[k]],
        words = `${k ? "before" : "from"} step ${number(step)}`;
      set(end, {transform: `translate(${[a, b][k]} 0)`, "aria-valuemin": cuts[0], "aria-valuemax": cuts.at(-1)});
      set(end, {"aria-valuenow": step, "aria-valuetext": words});
    });
  };
  const notify = (pause = 0) => {
    clearTimeout(telling);
    const now = range;
    telling = setTimeout(() => onbrush?.(now ? cuts[now[0]] : null, now ? cuts[now[1]] : null), pause);
  };
  const assign = (next) => {
    range = next;
    draw();
  };
  const change = (next, pause) => {
    assign(next);
    notify(pause);
  };
  const put = (steps) => assign(steps ? ordered(nearest(steps[0]), nearest(steps[1]), cuts.length) : null);

  const nodes = (hit) => {
    if (!onbrush) return [group];
    const at = (event) => x.invert(place(chart, event).x);
    const tools = {at, nearest, cuts, get: () => range, assign, notify, change};
    dragging(hit, tools);
    handles.forEach((end, k) => pulling(end, k, tools));
    return [starter({box, cuts, change, handles}), group];
  };
  return {nodes, put};
}

const ordered = (a, b, count) =>
  a === b ? (a + 1 < count ? [a, a + 1] : [a - 1, a]) : [Math.min(a, b), Math.max(a, b)];

function handle(end, box) {
  const middle = (box.top + box.bottom) / 2;
  const name = end === "from" ? "first step of the range" : "end of the range";
  return svg(
    "g",
    {class: "handle", role: "slider", tabindex: "-1", "aria-label": name},
    svg("rect", {class: "hit", x: -8, y: box.top, width: 16, height: box.bottom - box.top}),
    svg("line", {x1: 0, x2: 0, y1: box.top, y2: box.bottom}),
    svg("rect", {class: "grip", x: -4, y: middle - 12, width: 8, height: 24, rx: 4}),
  );
}

/** Dragging over the plot makes a new range; a click removes the one there is. */
function dragging(hit, {at, nearest, cuts, get, assign, notify}) {
  let anchor = null,
    moved = false;
  hit.classList.add("brushable");
  hit.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    hit.setPointerCapture?.(event.pointerId);
    anchor = {step: at(event), x: event.clientX};
    moved = false;
    event.preventDefault();
  });
  hit.addEventListener("pointermove", (event) => {
    if (anchor === null || (!moved && Math.abs(event.clientX - anchor.x) < 4)) return;
    moved = true;
    assign(ordered(nearest(anchor.step), nearest(at(event)), cuts.length));
  });
  const end = () => {
    if (anchor === null) return;
    anchor = null;
    if (!moved && get() === null) return;
    if (!moved) assign(null);
    notify();
  };
  hit.addEventListener("pointerup", end);
  hit.addEventListener("pointercancel", end);
}

/** One end of the range, by pointer or by keys: arrows go by one bar, with Shift by five; Home and End all the way. */
function pulling(end, k, {at, nearest, cuts, get, assign, notify, change}) {
  const moved = (to) => {
    const range = [...get()];
    range[k] = k ? Math.max(range[0] + 1, Math.min(cuts.length - 1, to)) : Math.min(range[1] - 1, Math.max(0, to));
    return range;
  };
  let held = false;
  end.addEventListener("pointerdown", (event) => {
    held = true;
    end.setPointerCapture(event.pointerId);
    event.stopPropagation();
  });
  end.addEventListener("pointermove", (event) => {
    if (held) assign(moved(nearest(at(event))));
  });
  end.addEventListener("pointerup", () => {
    if (held) notify();
    held = false;
  });
  end.addEventListener("pointercancel", () => {
    held = false;
  });
  end.addEventListener("keydown", (event) => {
    const far = event.shiftKey ? 5 : 1,
      now = get()?.[k];
    if (now === undefined) return;
    const back = now - far,
      on = now + far;
    const to = {ArrowLeft: back, ArrowDown: back, ArrowRight: on, ArrowUp: on, Home: 0, End: cuts.length - 1}[
      event.key
    ];
    if (to !== undefined) change(moved(to), PAUSE_MS);
    else if (event.key === "Escape" || event.key === "Delete") change(null, 0);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
}

/** The way in for the keyboard: Enter on the plot chooses its middle third. */
function starter({box, cuts, change, handles}) {
  const third = Math.max(1, Math.floor((cuts.length - 1) / 3));
  const name = "Choose a range of steps: press Enter, then move its ends with the arrow keys";
  return area(box, {
    class: "starter",
    rx: 3,
    tabindex: "0",
    role: "button",
    "pointer-events": "none",
    "aria-label": name,
    onkeydown: (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      change([Math.min(third, cuts.length - 2), Math.min(cuts.length - 1, 2 * third)], 0);
      handles[0].focus();
    },
  });
}
