// The training slots in the spotlight: one panel a layer, the chosen one large.
import {inReport} from "viewer/core/ask";
import {classMark, className} from "viewer/core/classes";
import {el} from "viewer/core/dom";
import {button, dotted} from "viewer/core/elements";
import {number, short} from "viewer/core/format";
import {link} from "viewer/core/highlight";
import {isMuted, toggleId} from "viewer/core/mute_sets";
import {taskColour} from "viewer/core/palette";
import {picture} from "viewer/core/picture";
import {state} from "viewer/core/state";
import {panel} from "viewer/panels/panel";

const LARGE = 68,
  SMALL = 40;
const HELP =
  "Training examples by the attention this layer pays to them: its input, times the input the layer had when it was " +
  "trained on the example. Click an image to mute it.";

/** The layer a state is about: the named one, or the last. */
export function chosenLayer(run, now) {
  return run.layers.some(({name}) => name === now.layer) ? now.layer : run.layers.at(-1).name;
}

/** Over which tag visits are summed, or null for single visits. */
export function perOf(run, now) {
  return now.per === "single" ? null : run.per.includes(now.per) ? now.per : (run.per[0] ?? null);
}

function visitWords(row) {
  if (row.visits > 1) return `${number(row.visits)} visits`;
  return row.step === null || row.step === undefined ? "1 visit" : `step ${number(row.step)}`;
}

// Slots that belong to no single example have none: null.
const hasId = (row) => (row.tags.id ?? null) !== null;

const classOf = (run, row) => (row.class === null || row.class === undefined ? null : className(run, row.class));

// The task is told by the picture's frame.
function caption(run, row, prediction) {
  const known = run.classes[row.class];
  return [
    el("span", {class: "weight"}, short(row.score)),
    known ? dotted(known.name, classMark(run, row.class, prediction)) : "",
    el("span", {class: "quiet-text"}, hasId(row) ? `id ${row.tags.id}` : `slot ${row.slot}`),
    el("span", {class: "quiet-text"}, visitWords(row)),
  ];
}

function describe(run, row) {
  const tags = Object.entries(row.tags)
    .filter(([, value]) => value !== null)
    .map(([name, value]) => `${name} ${value}`)
    .join(", ");
  return `attention ${number(row.score)}, ${tags}, ${visitWords(row)}`;
}

const linkOf = (row) => ({id: row.tags.id, slot: row.slot, class: row.class, step: row.step});

function canMute(run, row) {
  return !run.cannot.mute && !inReport && hasId(row);
}

function image(run, row, {large, prediction}) {
  const several = run.tasks.length > 1;
  const frame = several && (row.tags.task ?? null) !== null ? taskColour(run, row.tags.task) : null;
  const onclick = canMute(run, row) ? () => toggleId(row.tags.id) : null;
  const options = large ? {size: LARGE, caption: caption(run, row, prediction)} : {size: SMALL};
  const figure = picture(row.pixels, run.image.shape, {
    ...options,
    alt: describe(run, row),
    link: linkOf(row),
    onclick,
    frame,
  });
  figure.title = `${describe(run, row)}${onclick ? "\nClick to mute it" : ""}`;
  figure.dataset.test = "top-image";
  if (hasId(row)) figure.dataset.id = row.tags.id;
  return figure;
}

// Tags are names, even where they are numbers: no commas in them. Columns that are empty everywhere are left out.
function columnsOf(rows) {
  const known = (value) => (value === null || value === undefined ? null : number(value));
  const all = [
    ["weight", (row) => short(row.score)],
    ["slot", (row) => row.slot],
    ["step", (row) => known(row.step)],
    ["visits", (row) => known(row.visits)],
    ...Object.keys(rows[0]?.tags ?? {}).map((tag) => [tag, (row) => row.tags[tag]]),
  ];
  return all.filter(([, value]) => rows.some((row) => value(row) !== null && value(row) !== undefined));
}

function slotTable(run, rows) {
  const columns = columnsOf(rows);
  const line = (row) => {
    const tr = el(
      "tr",
      {"data-test": "top-image"},
      columns.map(([, value]) => el("td", {class: "numeric"}, String(value(row) ?? "–"))),
    );
    if (hasId(row)) tr.dataset.id = row.tags.id;
    if (canMute(run, row))
      tr.append(
        el(
          "td",
          {},
          button("mute", () => toggleId(row.tags.id)),
        ),
      );
    return link(tr, linkOf(row));
  };
  const head = columns.map(([name]) => el("th", {scope: "col", class: "numeric"}, name));
  return el("table", {class: "plain slots"}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows.map(line)));
}

function topRows(run, rows) {
  return rows.map(({score, slot, step, visits, coefficient, tags, ...row}) => ({
    score,
    slot,
    step,
    visits,
    coefficient,
    class: classOf(run, row),
    ...tags,
  }));
}

function perSwitch(run) {
  if (!run.per.length) return {element: "", update: () => {}};
  const choose = (value) => state.set({per: value === "single" ? value : null}, {replace: true});
  const make = (value, text) => button(text, () => choose(value), {"data-per": value});
  const buttons = [make(run.per[0], "per example"), make("single", "single visits")];
  const update = (now) => {
    const per = perOf(run, now) ?? "single";
    for (const item of buttons) item.setAttribute("aria-pressed", String(item.dataset.per === per));
  };
  const element = el(
    "div",
    {class: "segmented", role: "group", "aria-label": "Sum over visits", "data-test": "per"},
    buttons,
  );
  return {element, update};
}

/** The panel of one layer: {element, show, busy, fail, clear, update}. */
function layerPanel(run, layer, place) {
  const card = panel({title: layer.name, name: `spotlight-${layer.name}`, help: HELP});
  const body = el("div");
  const size = el("span", {class: "quiet-text"}, `${number(layer.d_in)} → ${number(layer.d_out)}`);
  const choose = button(
    [el("kbd", {class: "kbd"}, String(place + 1)), layer.name, size],
    () => state.set({layer: layer.name}, {replace: true}),
    {class: "layer-name", title: `Choose this layer (${place + 1})`},
  );
  const heading = card.element.querySelector("h2");
  const per = perSwitch(run);
  heading.replaceChildren(choose);
  heading.after(per.element);
  Object.assign(card.element.dataset, {test: "layer-panel", layer: layer.name});
  let rows = null,
    large = null,
    prediction = null;

  function fill() {
    const pictured = run.image && rows.some(({pixels}) => pixels);
    body.className = pictured ? "thumbs layer-thumbs" : "scroll";
    body.replaceChildren(
      ...(pictured
        ? rows.map((row) => image(run, row, {large, prediction}))
        : [slotTable(run, large ? rows : rows.slice(0, 3))]),
    );
    mark(state.get());
  }
  function draw() {
    if (!rows) return;
    fill();
    card.show(body);
  }
  function mark(now) {
    body
      .querySelectorAll("[data-test=top-image]")
      .forEach((item, k) => item.classList.toggle("is-muted", isMuted(now.mute, rows[k])));
  }
  function update(now) {
    const chosen = chosenLayer(run, now) === layer.name;
    card.element.classList.toggle("chosen", chosen);
    choose.setAttribute("aria-pressed", String(chosen));
    per.update(now);
    if (chosen === large) mark(now);
    else {
      large = chosen;
      draw();
    }
  }
  function show(answer) {
    rows = answer.top;
    draw();
    card.data(topRows(run, rows));
    card.python(answer.python);
  }
  function clear() {
    rows = null;
    body.replaceChildren();
    card.show([]);
  }
  function predicted(next) {
    prediction = next;
    if (rows && large) fill(); // small ones have no captions
  }
  return {element: card.element, update, show, predicted, busy: card.busy, fail: card.fail, clear};
}

export function layerPanels(run) {
  return run.layers.map((layer, place) => ({layer, ...layerPanel(run, layer, place)}));
}
