// The list of test inputs, wrong ones first, with filters; it leads to the spotlight.
import {inReport} from "viewer/core/ask";
import {className, outputName} from "viewer/core/classes";
import {el} from "viewer/core/dom";
import {button, dotted, reason} from "viewer/core/elements";
import {number, percent} from "viewer/core/format";
import {link} from "viewer/core/highlight";
import {pageOf} from "viewer/core/input_list";
import {choose} from "viewer/core/keyboard";
import {taskColour} from "viewer/core/palette";
import {picture} from "viewer/core/picture";
import {INPUTS_AT_ONCE} from "viewer/core/requests";
import {state, toHash} from "viewer/core/state";
import {canDraw} from "viewer/panels/drawpad";
import {panel} from "viewer/panels/panel";

const MAX_PAGES = 5; // that an address brings back at once

const isWrong = (input) => input.predicted !== null && input.label !== null && input.predicted !== input.label;

function outcomeWords(run, input) {
  const truth =
    input.class === null ? (input.label === null ? null : String(input.label)) : run.classes[input.class].name;
  const predicted = input.predicted === null ? null : outputName(run, input.task, input.predicted);
  if (!isWrong(input)) return truth ?? predicted ?? `${input.index}`;
  return [truth, " → ", el("b", {}, predicted)];
}

function describe(run, input) {
  const truth = input.class === null ? "" : ` is ${className(run, input.class)}`;
  if (input.predicted === null) return `Input ${input.index}${truth}`;
  return `Input ${input.index}${truth}, taken for ${outputName(run, input.task, input.predicted)} (${percent(input.probability)})`;
}

// A real link, so that it can be opened in another tab; a plain click stays on this page.
function anchor(input, place, attributes, ...children) {
  const click = (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    choose(input.index, place);
  };
  const href = toHash({...state.get(), page: "spotlight", input: input.index, start: place, step: null});
  return el("a", {href, onclick: click, "data-index": input.index, "data-test": "thumb", ...attributes}, ...children);
}

function thumb(run, input, place) {
  const frame = run.tasks.length > 1 ? taskColour(run, input.task) : null,
    words = describe(run, input);
  const figure = picture(input.pixels, run.image.shape, {size: 60, alt: "", caption: outcomeWords(run, input), frame});
  const item = anchor(
    input,
    place,
    {class: `thumb${isWrong(input) ? " wrong" : ""}`, title: words, "aria-label": words},
    figure,
  );
  return input.class === null ? item : link(item, {class: input.class});
}

function textRow(run, input, place) {
  const outcome = input.label === null && input.predicted === null ? "" : el("span", {}, outcomeWords(run, input));
  const task = input.task ? el("span", {class: "quiet-text"}, input.task) : "";
  const item = anchor(
    input,
    place,
    {class: `input-row${isWrong(input) ? " wrong" : ""}`},
    el("b", {}, `${input.index}`),
    outcome,
    task,
  );
  return input.class === null ? item : link(item, {class: input.class});
}

function filters(run) {
  const pick = (name, parse) => (event) => state.set({[name]: parse(event.target.value), start: 0}, {replace: true});
  const choice = (test, label, onchange, options) =>
    el(
      "select",
      {"data-test": test, "aria-label": label, onchange},
      options.map(([value, text]) => el("option", {value}, text)),
    );
  const outcome = choice(
    "filter-outcome",
    "Outcome",
    pick("outcome", (text) => text || null),
    [
      ["", "right and wrong"],
      ["wrong", "wrong only"],
      ["right", "right only"],
    ],
  );
  const classes = choice(
    "filter-class",
    "True class",
    pick("class", (text) => (text === "" ? null : Number(text))),
    [["", "all classes"], ...run.classes.map((_, k) => [String(k), `class ${className(run, k)}`])],
  );
  const search = el("input", {
    type: "search",
    inputmode: "numeric",
    placeholder: "number  /",
    "aria-label": "Find by number",
    "data-test": "search",
    oninput: pick("search", (text) => text.trim()),
  });
  const labelled = run.inputs?.labelled;
  const shown = [labelled && !run.cannot.predict && outcome, labelled && run.classes.length > 0 && classes, search];
  const update = (now) => {
    outcome.value = now.outcome ?? "";
    classes.value = now.class === null ? "" : String(now.class);
    if (search.value.trim() !== now.search) search.value = now.search;
  };
  return {element: el("div", {class: "filters row"}, shown), update};
}

function taskLegend(run) {
  if (run.tasks.length < 2 || !run.image) return "";
  return el(
    "span",
    {class: "row"},
    run.tasks.map(({name}) => dotted(name, taskColour(run, name), true)),
  );
}

function nothingFits() {
  const clear = button("Clear the filters", () => state.set({outcome: null, class: null, search: "", start: 0}), {
    "data-test": "clear-filters",
  });
  return el("p", {class: "row muted-note"}, "No input fits.", clear);
}

/** {element, update}. The list only ever grows until the filters change. */
export function inputsPanel(run) {
  const chosen = filters(run);
  const count = el("span", {class: "quiet-text", role: "status", "data-test": "input-count"});
  const grid = el("div", {class: run.image ? "thumbs input-thumbs" : "input-rows"});
  const more = el("button", {type: "button", "data-test": "more", hidden: true}, "Show more");
  const toPad = () => state.set({page: "spotlight", input: "drawn:", step: null});
  const draw = canDraw(run) ? button("Draw one yourself", toPad, {class: "draw-button"}) : "";
  const bar = el("div", {class: "row list-bar"}, chosen.element, count, taskLegend(run), draw);
  const card = panel({
    title: inReport ? "Inputs in this report" : "Test inputs",
    name: "inputs",
    body: [bar, grid, more],
  });
  let key = null,
    turn = 0,
    pages = 0,
    listed = [],
    queue = Promise.resolve();

  async function load(now, upto, mine) {
    while (pages <= upto && mine === turn) {
      const {total, inputs} = await pageOf(now, pages);
      if (mine !== turn) return;
      const make = run.image ? thumb : textRow;
      const items = inputs.map((input, k) => make(run, input, pages * INPUTS_AT_ONCE + k));
      if (pages === 0) grid.replaceChildren(...items);
      else grid.append(...items);
      listed = [...(pages === 0 ? [] : listed), ...inputs.map(({pixels, ...facts}) => facts)];
      card.data(listed);
      pages += 1;
      const order = now.outcome === null && inputs.some(isWrong) ? ", wrong ones first" : "";
      count.textContent = `${number(total)} ${total === 1 ? "input" : "inputs"}${order}`;
      if (!total) grid.replaceChildren(nothingFits());
      more.hidden = pages * INPUTS_AT_ONCE >= total;
      if (!inputs.length) return;
    }
  }

  function update(now, again = false) {
    chosen.update(now);
    const wanted = JSON.stringify([now.class, now.outcome, now.search]);
    if (wanted !== key || again) [key, pages, turn] = [wanted, 0, turn + 1];
    const upto = Math.min(Math.floor(now.start / INPUTS_AT_ONCE), MAX_PAGES - 1);
    loaded(now, upto);
  }

  // One after another, so that no page is shown twice.
  function loaded(now, upto) {
    const mine = turn;
    queue = queue.then(() => load(now, upto, mine)).catch((error) => grid.replaceChildren(reason(error.message)));
    return queue;
  }

  more.addEventListener("click", async () => {
    await loaded(state.get(), pages);
    state.set({start: (pages - 1) * INPUTS_AT_ONCE}, {replace: true});
  });
  return {element: card.element, update};
}
