// Training time: attention over it, the model as it was at any step, and the banner that says so.
import {lines} from "viewer/charts/lines";
import {timeline} from "viewer/charts/timeline";
import {inReport} from "viewer/core/ask";
import {outputName, outputRows} from "viewer/core/classes";
import {el} from "viewer/core/dom";
import {button, reason} from "viewer/core/elements";
import {number, percent} from "viewer/core/format";
import {toggleSet} from "viewer/core/mute_sets";
import {taskColour} from "viewer/core/palette";
import {state} from "viewer/core/state";
import {panel} from "viewer/panels/panel";

const ATTENTION_HELP =
  "Attention summed over the slots of each stretch of training. Drag to mark a stretch, then mute it.";
const SCRUBBER_HELP =
  "What the model said about this input while it was being trained; outputs that stay below 2% are left out. " +
  "Drag to go back; the arrow keys and the field take single steps.";
const MIN_PROBABILITY = 0.02; // of an output, for its line to be drawn
const PAUSE_MS = 200; // without a change after which the model of a step is asked for

function bandsOf(run) {
  if (run.tasks.length < 2) return []; // one task takes all the time
  return run.tasks.map(({name, first_step: first, last_step: last}) => ({
    label: name,
    first,
    last,
    colour: taskColour(run, name),
  }));
}

// At least one step, within the run; the end is left out.
function wholeSteps(a, b, steps) {
  const first = Math.min(Math.max(0, Math.round(a)), steps - 1);
  return [first, Math.min(steps, Math.max(Math.round(b), first + 1))];
}

/** Attention of the chosen layer over training time, with a stretch that can be muted. */
export function attentionPanel(run) {
  const empty = el("div", {class: "keep-chart"});
  const card = panel({title: "Attention over training time", name: "timeline", help: ATTENTION_HELP, body: empty});
  card.element.dataset.test = "timeline";
  const canMute = !run.cannot.mute && !inReport;
  const words = el("span", {class: "quiet-text"});
  const mute = button("Mute this stretch", () => toggleSet({steps: [...stretch]}), {
    "data-test": "mute-stretch",
    disabled: true,
  });
  const chart = el("div", {class: "keep-chart"});
  const body = el("div", {}, chart, el("div", {class: "row time-bar"}, words, canMute ? mute : ""));
  let stretch = null,
    drawn = null;

  function brushed(a, b) {
    stretch = a === null || a === undefined ? null : wholeSteps(Math.min(a, b), Math.max(a, b), run.steps);
    mute.disabled = stretch === null;
    const hint = canMute ? "drag across the chart to mark a stretch" : "";
    words.textContent = stretch ? `steps ${number(stretch[0])} to ${number(stretch[1] - 1)}` : hint;
  }
  function draw({first_step: first, last_step: last, total}) {
    const marks = {bands: bandsOf(run), brush: stretch, onbrush: brushed, marker: state.get().step};
    drawn = timeline({first, last, values: total, unit: "attention", height: 170, ...marks});
    chart.replaceChildren(drawn);
  }
  function show(next) {
    const {timeline: times, absent} = next;
    if (absent?.timeline || !times)
      return card.show(reason(absent?.timeline ?? "This run does not tell when its slots were written."));
    draw(times);
    card.show(body);
    card.data(times.total.map((total, k) => ({first_step: times.first_step[k], end_step: times.last_step[k], total})));
    card.python(next.python);
  }
  brushed(null);
  const update = ({step}) => drawn?.set({marker: step});
  return {element: card.element, show, update, busy: card.busy, fail: card.fail, clear: () => card.show([])};
}

const nearest = (stops, step) =>
  stops.reduce((best, stop) => (Math.abs(stop - step) < Math.abs(best - step) ? stop : best), stops[0]);

// A report knows the model at its stops only: a key goes to the next of them.
function stopFor(stops, step, from) {
  const next = step > from ? stops.find((stop) => stop > from) : stops.findLast((stop) => stop < from);
  return Math.abs(step - from) === 1 ? (next ?? from) : nearest(stops, step);
}

/** A range and a field for the step: dragging stops at snapshots, keys and the field go anywhere. */
function stepControls(run) {
  let dragging = false,
    timer = null,
    stops = run.snapshots;
  const ask = (step) => {
    const wanted = inReport
      ? stopFor(stops, step, state.get().step ?? run.steps)
      : Math.min(run.steps, Math.max(0, Math.round(step)));
    range.value = field.value = String(wanted);
    clearTimeout(timer);
    const go = () => state.set({step: wanted === run.steps ? null : wanted}, {replace: true});
    timer = setTimeout(go, stops.includes(wanted) ? 0 : PAUSE_MS);
  };
  const range = el("input", {
    type: "range",
    min: 0,
    max: run.steps,
    step: 1,
    "aria-label": "Training step",
    "data-test": "scrubber-range",
    onpointerdown: () => (dragging = true),
    onpointerup: () => (dragging = false),
    onkeydown: () => (dragging = false),
    oninput: () => ask(dragging && stops.length > 1 ? nearest(stops, Number(range.value)) : Number(range.value)),
  });
  const field = el("input", {
    type: "number",
    min: 0,
    max: run.steps,
    "aria-label": "Training step, as a number",
    "data-test": "scrubber-step",
    onchange: () => ask(Number(field.value)),
  });
  const end = button("Back to the end", () => ask(run.steps), {"data-test": "to-end"});
  const update = (now) => {
    const step = String(now.step ?? run.steps);
    if (document.activeElement !== field) field.value = step;
    if (!dragging) range.value = step;
    end.disabled = now.step === null;
  };
  const element = el("div", {class: "row time-bar"}, range, el("label", {}, "step ", field), end);
  return {element, update, ask, stopAt: (steps) => (stops = steps)};
}

// Before training everything is equally likely; afterwards many lines lie on zero, and only hide each other's names.
const isNotable = ({values, emphasis}) =>
  Boolean(emphasis) || values.length < 2 || Math.max(...values.slice(1)) >= MIN_PROBABILITY;

/** Probabilities over training time, and the way to any step of it. */
export function scrubberPanel(run) {
  const card = panel({title: "What the model said over training time", name: "history", help: SCRUBBER_HELP});
  card.element.dataset.test = "scrubber";
  const chart = el("div", {class: "keep-chart"});
  const controls = stepControls(run);
  const message = el("p", {class: "muted-note", hidden: true});
  let prediction = null,
    answer = null,
    drawn = null;
  if (run.cannot.time) card.show(reason(run.cannot.time));
  else card.show(el("div", {}, chart, message, controls.element));

  function setMessage(text) {
    message.hidden = !text;
    message.textContent = text ?? "";
  }
  function draw() {
    if (!answer) return;
    const rows = outputRows(run, prediction ?? {}, answer.probabilities[0]?.length ?? 0);
    const series = rows
      .map((row, k) => ({...row, values: answer.probabilities.map((list) => list[k])}))
      .filter(isNotable);
    const marker = state.get().step ?? run.steps;
    drawn = lines({
      x: answer.steps,
      series,
      xlabel: "training step",
      ylabel: "probability",
      marker,
      onpick: controls.ask,
      height: 170,
    });
    chart.replaceChildren(drawn);
  }
  function show(next) {
    answer = next;
    controls.stopAt(next.steps);
    setMessage(null);
    draw();
    const names = outputRows(run, prediction ?? {}, next.probabilities[0]?.length ?? 0).map(({label}) => label);
    card.data(
      next.steps.map((step, k) => ({
        step,
        ...Object.fromEntries(names.map((name, j) => [name, next.probabilities[k][j]])),
      })),
    );
    card.python(next.python);
  }
  function clear() {
    answer = null;
    chart.replaceChildren();
  }
  function update(now) {
    controls.update(now);
    drawn?.set({marker: now.step ?? run.steps});
  }
  const fail = (text) => [clear(), setMessage(text)];
  return {
    element: card.element,
    show,
    update,
    clear,
    fail,
    busy: card.busy,
    predicted: (next) => [(prediction = next), draw()],
  };
}

/** Across the top while the model is not the finished one. */
export function stepBanner(run) {
  const words = el("span");
  const end = button("Back to the end", () => state.set({step: null}, {replace: true}));
  const element = el(
    "div",
    {class: "step-banner", role: "status", "data-test": "step-banner", hidden: true},
    words,
    end,
  );
  let shown = null;
  const write = (step, prediction) => {
    const at = el("b", {}, `as it was after step ${number(step)}`);
    words.replaceChildren(
      "The prediction is ",
      at,
      ` of ${number(run.steps)}`,
      ...prediction,
      ". Attention and muting are those of the finished run.",
    );
  };
  const update = ({step}) => {
    element.hidden = step === null;
    if (step !== null && step !== shown) write(step, []);
    shown = step;
  };
  const show = ({step, task, predicted, probabilities}) => {
    if (predicted === null || !probabilities) return write(step, []);
    const name = el("b", {class: "role-predicted"}, outputName(run, task, predicted));
    write(step, [": ", name, ` (${percent(probabilities[predicted])})`]);
  };
  return {element, update, show};
}
