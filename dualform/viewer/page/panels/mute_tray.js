// What is muted, and what the model says without it, muted or trained again. It stays in sight at the foot of the page.
import {compare} from "viewer/charts/compare";
import {inReport} from "viewer/core/ask";
import {classMark, className, classSet, outputName, outputRows, setName, taskSet} from "viewer/core/classes";
import {el} from "viewer/core/dom";
import {button, dotted, table} from "viewer/core/elements";
import {number, percent} from "viewer/core/format";
import {link} from "viewer/core/highlight";
import {canUndo, clear as clearAll, hasSet, toggleSet, undo} from "viewer/core/mute_sets";
import {taskColour} from "viewer/core/palette";
import {canonical} from "viewer/core/requests";
import {panel} from "viewer/panels/panel";
import {trainAgain} from "viewer/panels/train_again";

const MAX_ROWS = 5;
const HELP =
  "The model's weights without what the muted slots added to them. Everything else is as it was recorded: " +
  "a model trained without these examples would have learnt other things from the rest. Where the run can be trained " +
  "again, that model can be asked, too: of whole examples, in all layers.";

/** A set that is muted, by its name; a click unmutes it. */
export function chip(run, set) {
  const name = setName(run, set);
  const attributes = {class: "chip", "data-test": "chip", title: `Unmute ${name}`};
  return button([name, el("span", {"aria-hidden": "true"}, " ×")], () => toggleSet(set), attributes);
}

function muteButton(set, name, attributes) {
  return {set, element: button(name, () => toggleSet(set), {class: "mute-button", ...attributes})};
}

function taskButton(run, name) {
  const attributes = {"data-test": "mute-task", "data-task": name, title: `Mute everything of ${name}`};
  return muteButton(taskSet(name), dotted(`task ${name}`, taskColour(run, name)), attributes);
}

function classButton(run, {name, task}, k) {
  const attributes = {"data-test": "mute-class", "data-class": k, title: `Mute class ${className(run, k)}`};
  const item = muteButton(classSet(run, k), null, attributes);
  const mark = (prediction) => item.element.replaceChildren(dotted(name, classMark(run, k, prediction)));
  mark(null);
  link(item.element, {class: k});
  return {...item, task, mark};
}

/** One small button for each task and class; `mark` gives a square to what the input is and what it was taken for. */
function buttons(run) {
  const several = run.tasks.length > 1;
  const classes = run.classes.map((row, k) => classButton(run, row, k));
  const groups = several
    ? run.tasks.map(({name}) => [taskButton(run, name), ...classes.filter(({task}) => task === name)])
    : [classes];
  const update = ({mute}) => {
    for (const {element, set} of groups.flat()) element.setAttribute("aria-pressed", String(hasSet(mute, set)));
  };
  return {
    elements: groups.map((group) =>
      el(
        "div",
        {class: "row mute-buttons"},
        group.map(({element}) => element),
      ),
    ),
    update,
    mark: (prediction) => classes.forEach((item) => item.mark(prediction)),
  };
}

function layerTable(run, task, answer, again) {
  const {predicted} = answer.before;
  const muted = (name) => (Object.hasOwn(answer.slots, name) ? number(answer.slots[name][0]) : "");
  const row = ([name, prediction]) => [
    name,
    outputName(run, task, prediction.predicted),
    percent(prediction.probabilities?.[predicted]),
    muted(name),
  ];
  const head = ["muted in", "says", `P(${outputName(run, task, predicted)})`, "slots"];
  const rows = [["all layers", answer.after], ...Object.entries(answer.layers)];
  if (again) rows.push([el("b", {}, "trained again"), again]);
  return table(head, rows.map(row), {numeric: [2, 3]});
}

/** What muting is; and what it is beside a training again. */
export function disclaimer(retrained = false) {
  if (!retrained) return "Recorded contributions removed, not retrained.";
  return "Muting takes recorded contributions out; training again is the true answer.";
}

/** How many slots are muted, of how many: of each layer if all are alike, else of all together. */
export function slotWords({slots}) {
  const each = Object.values(slots);
  const alike = each.every(([muted, all]) => muted === each[0][0] && all === each[0][1]);
  if (each.length && alike) return `${number(each[0][0])} of ${number(each[0][1])} slots muted in each layer.`;
  const sum = (k) => each.reduce((total, pair) => total + pair[k], 0);
  return `${number(sum(0))} of ${number(sum(1))} slots muted, over all layers.`;
}

function headline(run, task, {before, after}, again) {
  const {predicted, probabilities} = again ?? {};
  const share = again && ` (${percent(probabilities[predicted])})`;
  const trained = again ? ["; trained again without them, ", el("b", {}, outputName(run, task, predicted)), share] : [];
  return [...mutedWords(run, task, before, after), ...trained];
}

function mutedWords(run, task, before, after) {
  const was = before.predicted,
    is = after.predicted,
    name = (k) => outputName(run, task, k);
  const change = `: ${percent(before.probabilities[was])} → ${percent(after.probabilities[was])}`;
  if (was === is) return ["Without them the model still says ", el("b", {}, name(is)), change];
  const prediction = [el("b", {class: "role-predicted"}, name(is)), ` (${percent(after.probabilities[is])})`];
  return ["Without them the model says ", ...prediction, " instead of ", el("b", {}, name(was))];
}

// The tray is low: the outputs that matter, and the rest in one row.
function compareRows(rows) {
  if (rows.length <= MAX_ROWS) return rows;
  const size = ({before, after, again = 0}) => Math.max(before, after, again);
  const least = rows.map(size).sort((a, b) => b - a)[MAX_ROWS - 2];
  const kept = rows.filter((row) => size(row) >= least).slice(0, MAX_ROWS - 1),
    rest = rows.filter((row) => !kept.includes(row));
  const sum = (name) => rest.reduce((total, row) => total + row[name], 0);
  const sums = {before: sum("before"), after: sum("after"), ...("again" in rows[0] ? {again: sum("again")} : {})};
  return [...kept, {label: "others", ...sums, colour: "var(--quiet)", link: null}];
}

function hintFor(run) {
  if (inReport) return "Choose a class to see the model without it.";
  if (run.classes.length) return "Choose a class, or click a training image, to see the model without it.";
  return "Click a training example, or mark a stretch of time, to see the model without it.";
}

export function muteTray(run, changed) {
  const training = trainAgain(run, changed);
  const chips = el("div", {class: "row chips"});
  const back = button("Undo", undo, {title: "Undo the last muting (u)", "data-test": "undo-mute"});
  const none = button("Clear", clearAll, {"data-test": "clear-mute"});
  const choices = buttons(run);
  const hint = el("span", {class: "quiet-text"}, hintFor(run));
  const caption = el("span", {class: "honest", "data-test": "honest"});
  const fold = button("", () => folded(!element.classList.contains("folded")), {"data-test": "fold-tray"});
  const card = panel({title: "Without them", name: "muted", help: HELP, body: el("div", {class: "keep-compare"})});
  card.element.dataset.test = "tray-before-after";
  const verdict = card.element.querySelector("h2");
  verdict.setAttribute("role", "status");
  verdict.after(caption);
  verdict.closest("header").after(training.element);
  const undoing = el("span", {class: "row tray-undo"}, back, none, fold);
  const sets = el("div", {class: "row"}, el("b", {}, "Mute"), ...choices.elements, hint, chips);
  const bar = el("div", {class: "tray-bar"}, sets, undoing);
  const element = el("div", {class: "tray", "data-test": "tray"}, bar, card.element);
  let task = null,
    label = null,
    muted = null, // {answer, about}, and the same of a training without them
    retrained = null;
  if (run.cannot.mute) bar.replaceChildren(el("b", {}, "Mute"), el("span", {class: "quiet-text"}, run.cannot.mute));

  function folded(yes) {
    element.classList.toggle("folded", yes);
    fold.textContent = yes ? "Show" : "Fold";
    fold.title = yes ? "Show probabilities before and after" : "Keep one line of this";
    fold.setAttribute("aria-expanded", String(!yes));
  }
  folded(false);
  function update(now) {
    const some = now.mute.length > 0 && !run.cannot.mute;
    card.element.hidden = caption.hidden = fold.hidden = !some;
    element.classList.toggle("open", some);
    hint.hidden = some;
    chips.replaceChildren(...now.mute.map((set) => chip(run, set)));
    choices.update(now);
    none.disabled = !some;
    back.disabled = !canUndo();
    training.update(now);
  }
  function draw() {
    const {answer, about} = muted;
    const again = retrained && canonical(retrained.about) === canonical(about) ? retrained.answer : null;
    caption.textContent = `${disclaimer(again !== null)} ${slotWords(answer)}`;
    verdict.replaceChildren(...headline(run, task, answer, again?.again));
    const rows = outputRows(
      run,
      {task, label, predicted: answer.before.predicted},
      answer.before.probabilities.length,
    ).map((row, k) => ({
      ...row,
      before: answer.before.probabilities[k],
      after: answer.after.probabilities[k],
      ...(again && {again: again.again.probabilities[k]}),
    }));
    card.show(
      el(
        "div",
        {class: "tray-parts"},
        compare({rows: compareRows(rows), unit: "probability"}),
        layerTable(run, task, answer, again?.again),
      ),
    );
    card.data(rows.map(({label: output, before, after, again: then}) => ({output, before, after, ...(again && {again: then})})));
    card.python((again ?? answer).python);
  }
  function show(answer, about) {
    muted = {answer, about};
    draw();
  }
  function showAgain(answer, about) {
    retrained = {answer, about};
    training.tell(answer);
    if (muted) draw();
  }
  function busy(text) {
    if (text && !caption.textContent) caption.textContent = disclaimer();
    card.busy(text);
  }
  const clear = () => [(caption.textContent = ""), (muted = retrained = null), card.show([])];
  return {
    element,
    update,
    show,
    busy,
    fail: card.fail,
    clear,
    isRetrained: training.has,
    showAgain,
    failAgain: training.fail,
    close: training.close,
    predicted: (answer) => {
      ({task, label} = answer ?? {task: null, label: null});
      choices.mark(answer);
    },
  };
}
