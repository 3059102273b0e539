// What the page is about: the input, what it is, what the model says, and the pad to draw another.
import {bars} from "viewer/charts/bars";
import {outputName, outputRows} from "viewer/core/classes";
import {el} from "viewer/core/dom";
import {button, dotted} from "viewer/core/elements";
import {number, percent} from "viewer/core/format";
import {go} from "viewer/core/keyboard";
import {taskColour} from "viewer/core/palette";
import {picture} from "viewer/core/picture";
import {state} from "viewer/core/state";
import {canDraw, drawpad} from "viewer/panels/drawpad";
import {panel} from "viewer/panels/panel";

const SHOWN_VALUES = 24;
const HELP =
  "The probability the model gives to each of its outputs. Green: right. Blue: what it said, vermillion: " +
  "what it should have said.";
const isDrawn = (now) => typeof now.input === "string";

function verdict(run, {predicted, probabilities, label, task, class: own}) {
  const truth = label === null ? null : own === null ? String(label) : String(run.classes[own].name);
  const right = label !== null && predicted === label;
  const lines = [];
  const whose = run.tasks.length > 1 && task ? dotted(task, taskColour(run, task), true) : "";
  if (truth !== null)
    lines.push(el("p", {}, "This is ", el("b", {class: right ? "role-both" : "role-true"}, truth), whose));
  if (predicted !== null) {
    const name = el("b", {class: right ? "role-both" : "role-predicted"}, outputName(run, task, predicted));
    const sure = probabilities ? el("span", {class: "quiet-text"}, ` ${percent(probabilities[predicted])}`) : "";
    lines.push(el("p", {}, "The model says ", name, sure));
  }
  return lines;
}

function valuesText(values) {
  const rest = values.length - SHOWN_VALUES;
  const shown = values.slice(0, SHOWN_VALUES).map(number).join("  ");
  return el("p", {class: "values"}, shown, rest > 0 ? ` … and ${number(rest)} more` : "");
}

function inputView(run, answer, size) {
  const frame = run.tasks.length > 1 && answer.task ? taskColour(run, answer.task) : null;
  if (answer.pixels && run.image)
    return picture(answer.pixels, run.image.shape, {size, alt: "the input, as the model sees it", frame});
  return answer.values ? valuesText(answer.values) : null;
}

/** The buttons above the input: before, after, draw. */
function controls(run) {
  const title = el("b", {class: "input-name"});
  const before = button("‹", () => go(-1), {title: "The input before (←)", "aria-label": "The input before"});
  const after = button("›", () => go(1), {title: "The input after (→)", "aria-label": "The input after"});
  let left = null; // the input that was shown before the pad, to go back to
  const draw = button("", () => state.set({input: isDrawn(state.get()) ? left : "drawn:", step: null}), {
    "data-test": "draw",
  });
  const update = (now) => {
    const drawing = isDrawn(now);
    if (!drawing) left = now.input;
    title.textContent = drawing ? "Your drawing" : now.input === null ? "" : `Input ${now.input}`;
    before.hidden = after.hidden = drawing;
    draw.textContent = drawing ? "Test inputs" : "Draw";
    draw.title = drawing ? "Back to the test inputs" : "Draw an input of your own";
  };
  return {element: el("div", {class: "row input-bar"}, before, title, after, canDraw(run) ? draw : ""), update};
}

export function inputPanel(run) {
  const bar = controls(run);
  const image = el("div", {class: "input-image", "data-test": "seen"});
  const words = el("div", {class: "verdict", "data-test": "prediction", role: "status"});
  const chart = el("div", {class: "keep-bars", "data-test": "probabilities"});
  const message = el("p", {class: "muted-note", hidden: true});
  const pad = !canDraw(run)
    ? null
    : drawpad((drawn) => state.set({input: `drawn:${drawn}`, step: null}, {replace: true}));
  const caption = el("p", {class: "quiet-text small"}, "what the model sees");
  const top = el(
    "div",
    {class: "input-top"},
    pad?.element ?? "",
    el("div", {class: "input-side"}, image, caption, words),
  );
  const title = run.kind === "images" ? "The input" : "The row";
  const card = panel({title, name: "prediction", help: HELP, body: [bar.element, top, message, chart]});

  function setMessage(text) {
    message.hidden = !text;
    message.textContent = text ?? "";
  }
  function empty(text) {
    image.replaceChildren();
    words.replaceChildren();
    chart.replaceChildren();
    card.data(null);
    setMessage(text);
  }
  function show(answer) {
    setMessage(answer.probabilities ? answer.note : run.cannot.predict);
    image.replaceChildren(...[inputView(run, answer, isDrawn(state.get()) ? 84 : 120)].filter(Boolean));
    words.replaceChildren(...verdict(run, answer));
    chart.replaceChildren(...(answer.probabilities ? [probabilityBars(run, answer)] : []));
    card.data(
      (answer.probabilities ?? []).map((probability, k) => ({output: outputName(run, answer.task, k), probability})),
    );
    card.python(answer.python);
  }
  function update(now) {
    bar.update(now);
    const drawing = isDrawn(now) && pad !== null;
    caption.hidden = !drawing;
    if (pad) pad.element.hidden = !drawing;
    top.classList.toggle("drawing", drawing);
    if (drawing) pad.restore(now.input.slice("drawn:".length));
  }
  const blank = () =>
    empty(isDrawn(state.get()) ? "Draw in the frame: everything on this page follows the pen." : null);
  return {element: card.element, update, show, busy: card.busy, fail: empty, clear: blank, close: () => pad?.close()};
}

function probabilityBars(run, answer) {
  const rows = outputRows(run, answer, answer.probabilities.length).map((row, k) => ({
    ...row,
    value: answer.probabilities[k],
  }));
  return bars({rows, unit: "probability", caption: "Probability of each output", horizontal: true});
}
